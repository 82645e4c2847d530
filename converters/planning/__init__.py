"""Each tensor of a checkpoint -> tensors of the output, as steps that can be read, written, compared, shown."""
