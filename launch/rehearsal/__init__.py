"""The real verl on CPU: a backend for machines without CUDA, tiny models, and their settings."""
