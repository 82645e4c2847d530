"""A Hugging Face model folder: config.json, the files beside the weights, the weights, the card."""
