"""Image stacks that are known to fit together."""
