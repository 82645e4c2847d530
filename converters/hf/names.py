"""Names that several parts of a conversion know: tensors that may be tied, the file of a LoRA adapter."""

from __future__ import annotations

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ADAPTER_CONFIG = "adapter_config.json"
