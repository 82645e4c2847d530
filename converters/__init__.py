"""Checkpoints to Hugging Face models."""
