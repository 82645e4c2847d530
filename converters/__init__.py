"""Checkpoints to Hugging Face models: what verl saved goes in, what `transformers` loads comes out.

The way of a merge, one module a step:

    locate         which folder holds the weights, and in which layout
    torch_dist     Megatron-core `torch_dist` shards  \\
    fsdp           FSDP2 DTensor shards                > name -> GlobalTensor, nothing read yet
    hf_model       a model that is Hugging Face already: checked and copied
    hf_config      config.json -> dimensions, tied or untied
    families       one table of rules a model family
    plan           every tensor of the checkpoint -> tensors of the output, or a list of what is wrong
    hf_writer      safetensors shards of a bounded size, in a folder that becomes the target at the end
    merge          the command

No module imports torch, verl or Megatron, and nothing that a checkpoint contains is executed
(`safe_unpickle`). Tensors are moved as words of their own size, so the result is bit for bit what was saved.
"""
