"""A model as its folder tells it: config.json, weights, tokenizer. No torch."""
