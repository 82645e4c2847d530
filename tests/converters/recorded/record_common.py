"""Write a common.pt as megatron-core and programs on top of it do, with their own classes:

ENV/bin/python tests/converters/recorded/record_common.py tests/converters/recorded/common_mcoreVERSION.pt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.enums import AttnBackend, AttnMaskType
from omegaconf import OmegaConf


def main() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    scheduler = OptimizerParamScheduler(optimizer, 0.0, 1e-3, 1e-5, 10, 100, "cosine", 0.0, 0.1, 100, "linear")
    args = argparse.Namespace(
        params_dtype=torch.bfloat16,
        attention_backend=AttnBackend.flash,
        mask=AttnMaskType.causal,
        model_type=ModelType.encoder_or_decoder,
        yaml=OmegaConf.create({"a": {"b": [1, 2, None]}}),
        optimizer=OptimizerConfig(optimizer="adam", lr=1e-3),
        load=Path("/checkpoints"),
    )
    state = {
        "optimizer": optimizer.state_dict(),
        "opt_param_scheduler": scheduler.state_dict(),
        "args": args,
        "iteration": 7,
        "content_metadata": {"distrib_optim_sharding_type": "dp_reshardable"},
    }
    torch.save(state, sys.argv[1])


if __name__ == "__main__":
    main()
