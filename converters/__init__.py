"""Checkpoints to Hugging Face models: what verl saved goes in, what `transformers` loads comes out.

The way of a merge, a folder a step:

    checkpoint     which folder holds the weights, in which layout; is it whole; its tables of tensors, no more
      pickles      what torch.save and Megatron pickled, by an interpreter that runs nothing
      storage      tensors in files: chunks, rows, checksums, types
    hf             config.json and the files beside the weights; weights that are Hugging Face's already
    families       one table of rules a model family
    lora           adapters, merged or kept
    planning       every tensor of the checkpoint -> tensors of the output, or a list of what is wrong
    writing        safetensors shards of a bounded size, in a folder that becomes the target at the end
    comparing      the result with its checkpoint, one model with another

`merge`, `compare` and `resume` are the commands, `convert` is the way from end to end. No module imports torch,
verl or Megatron, and nothing that a checkpoint contains is executed. Tensors are moved as words of their own size,
so the result is bit for bit what was saved.
"""
