"""Steps carried out: block by block into shards, several at a time, resumable, whole at the end."""
