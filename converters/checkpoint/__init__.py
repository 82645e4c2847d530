"""What verl saved: finding it, whether it is whole, and its tables of tensors, by format."""
