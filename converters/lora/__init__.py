"""LoRA adapters: their settings, told apart from the base's weights, and as PEFT's folder."""
