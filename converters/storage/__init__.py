"""Tensors in files: types, global tensors made of chunks, and reading their rows with checksums."""
