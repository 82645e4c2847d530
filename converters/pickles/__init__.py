"""Pickles of checkpoints, read by an interpreter that runs nothing they name."""
