"""Job -> trainer command with Hydra overrides, for one version of verl."""
