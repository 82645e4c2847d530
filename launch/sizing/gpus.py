"""Facts of GPUs by the name that Slurm gives them (h200, nvidia_h100_80gb_hbm3, a100-sxm4-40gb, gpu:l40s).

Compute capability: NVIDIA's list of CUDA GPUs. Memory: what nvidia-smi shows as the total, in GiB, which is a
little less than the number in the product's name where ECC takes a part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Blockwise = Literal["native", "emulated", "none"]


@dataclass(frozen=True)
class Gpu:
    """One GPU model.

    Attributes:
        name: the product's name.
        capability: CUDA compute capability (major, minor).
        sizes: memory sizes that the product comes in, the number in the name and GiB; the assumed one first.
        memory_gib: memory of one GPU; None where the Slurm name does not say which size it is.
        host: architecture of the CPU that it is one product with, as Go names it; None where any may be beside it.
    """

    name: str
    capability: tuple[int, int]
    sizes: tuple[tuple[int, float], ...]
    memory_gib: float | None = None
    host: str | None = None

    @property
    def assumed_gib(self) -> float:
        """`memory_gib`, or the smallest of the usual sizes where the name does not say."""
        return self.sizes[0][1] if self.memory_gib is None else self.memory_gib

    @property
    def capability_text(self) -> str:
        """As people write it: 9.0."""
        return f"{self.capability[0]}.{self.capability[1]}"

    @property
    def bf16(self) -> bool:
        """bfloat16 in hardware: Ampere and newer."""
        return self.capability >= (8, 0)

    @property
    def fp8(self) -> bool:
        """FP8 matrix multiplication in hardware: Ada, Hopper and newer."""
        return self.capability >= (8, 9)

    @property
    def fp8_blockwise(self) -> Blockwise:
        """FP8 with a scale for each block, Transformer Engine's Float8BlockScaling.

        Native on Hopper. On Blackwell 10.x newer releases emulate it with MXFP8, whose scales are powers of two;
        Transformer Engine 2.2 to 2.4 refuse it there ("requires Hopper"). MXFP8 is not offered on 12.x
        (`check_fp8_block_scaling_support` and `check_mxfp8_support`, transformer_engine/pytorch).
        """
        if self.capability[0] == 9:
            return "native"
        return "emulated" if self.capability[0] in (10, 11) else "none"

    @property
    def fp8_fp32_scales(self) -> Literal["0", "1"] | None:
        """What NVTE_FP8_BLOCK_SCALING_FP32_SCALES must be for blockwise FP8; None where there is none."""
        if self.fp8_blockwise == "none":
            return None
        return "1" if self.fp8_blockwise == "native" else "0"


# The first pattern found in the name counts, so gh200 stands before h200 and l40s before l40.
_KNOWN: tuple[tuple[str, Gpu], ...] = (
    ("gb300", Gpu("GB300", (10, 3), ((288, 277.6),), host="arm64")),
    ("b300", Gpu("B300", (10, 3), ((288, 268.6),))),
    ("gb200", Gpu("GB200", (10, 0), ((186, 184.9),), host="arm64")),
    ("b200", Gpu("B200", (10, 0), ((180, 179.1),))),
    ("gh200", Gpu("GH200", (9, 0), ((96, 95.6), (144, 140.4)), host="arm64")),
    ("h200", Gpu("H200", (9, 0), ((141, 140.4),))),
    ("h800", Gpu("H800", (9, 0), ((80, 79.6),))),
    ("h100", Gpu("H100", (9, 0), ((80, 79.6), (64, 63.4), (94, 93.6), (96, 95.6)))),
    ("h20", Gpu("H20", (9, 0), ((96, 95.6), (141, 140.4)))),
    ("a800", Gpu("A800", (8, 0), ((40, 40.0), (80, 80.0)))),
    ("a100", Gpu("A100", (8, 0), ((40, 40.0), (64, 63.4), (80, 80.0)))),
    ("a30", Gpu("A30", (8, 0), ((24, 24.0),))),
    ("a40", Gpu("A40", (8, 6), ((48, 45.0),))),
    ("a10g?", Gpu("A10", (8, 6), ((24, 22.5),))),
    ("a16", Gpu("A16", (8, 6), ((16, 15.0),))),
    ("l40s", Gpu("L40S", (8, 9), ((48, 45.0),))),
    ("l40", Gpu("L40", (8, 9), ((48, 45.0),))),
    ("l4", Gpu("L4", (8, 9), ((24, 22.5),))),
    ("rtx.?pro.?6000", Gpu("RTX PRO 6000 Blackwell", (12, 0), ((96, 95.6),))),
    ("rtx.?6000.?ada|6000.?ada", Gpu("RTX 6000 Ada", (8, 9), ((48, 48.0),))),
    ("a6000", Gpu("RTX A6000", (8, 6), ((48, 48.0),))),
    ("a5000", Gpu("RTX A5000", (8, 6), ((24, 24.0),))),
    ("5090", Gpu("RTX 5090", (12, 0), ((32, 31.8),))),
    ("4090", Gpu("RTX 4090", (8, 9), ((24, 24.0),))),
    ("3090", Gpu("RTX 3090", (8, 6), ((24, 24.0),))),
    ("2080.?ti", Gpu("RTX 2080 Ti", (7, 5), ((11, 11.0),))),
    ("rtx.?6000|rtx6k", Gpu("Quadro RTX 6000", (7, 5), ((24, 24.0),))),
    ("t4", Gpu("T4", (7, 5), ((16, 15.0),))),
    ("v100s?", Gpu("V100", (7, 0), ((16, 16.0), (32, 32.0)))),
    ("p100", Gpu("P100", (6, 0), ((12, 12.0), (16, 16.0)))),
)
# A name starts a word or follows a vendor, series or count; no digit follows: a10 is not in a100, nor h20 in h200.
_BEFORE = r"(?<![a-z0-9])(?:nvidia|tesla|geforce|quadro|gpu|dgx|hgx|rtx|\d+x)*"
# Sites that name their slices themselves write 1g.10gb without the dot, or with another sign in its place.
MIG = re.compile(r"(?<![0-9])[1-7]g[._-]?([0-9]{1,3})gb", re.IGNORECASE)
_AMD = re.compile(r"(?<![a-z0-9])(?:amd|instinct)?[_-]?mi[0-9]{2,3}(?![0-9])")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_NO_TYPES = ("gpu", "gres", "any")
_COUNT = re.compile(r"[0-9]{1,3}")
_NUMBER = re.compile(r"(?<![a-z0-9])(\d{2,3})(?=gi?b?(?![a-z])|[^a-z0-9]|$)")


def _memory(gpu: Gpu, name: str) -> float | None:
    if mig := MIG.search(name):
        return float(mig.group(1))
    said = {int(number) for number in _NUMBER.findall(name)}
    found = gpu.sizes if len(gpu.sizes) == 1 else [size for size in gpu.sizes if size[0] in said]
    return found[0][1] if len(found) == 1 else None


def find_gpu(name: str | None) -> Gpu | None:
    """The GPU that a Slurm name means, in any case and with anything around it; None where it is not known.

    The memory is the GPU's, or the slice's of a MIG name (a100_3g.20gb: 20); it is None where a product comes in
    several sizes and the name holds none of them (a100: 40, 64 or 80 GB).
    """
    text = (name or "").lower()
    for pattern, gpu in _KNOWN:
        if re.search(rf"{_BEFORE}(?:{pattern})(?![0-9])", text):
            return replace(gpu, memory_gib=_memory(gpu, text))
    return None


def is_type(name: str) -> bool:
    """Whether --gpus-per-node=NAME:8 asks for a type of GPU. Of four digits it is one (4090), of fewer a count."""
    return _TYPE.fullmatch(name) is not None and name not in _NO_TYPES and not _COUNT.fullmatch(name)


def is_amd(name: str | None) -> bool:
    """Whether a Slurm name means a GPU of AMD: mi250, amd_instinct_mi300x."""
    return _AMD.search((name or "").lower()) is not None
