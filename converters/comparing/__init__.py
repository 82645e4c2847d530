"""Two models, or a model and its checkpoint, tensor by tensor."""
