"""Which GPUs do what, and whether the model fits in their memory."""
