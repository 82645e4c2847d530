"""The HTTP service: admission, queue, batches, metrics."""
