"""Facts of GPUs by the names that clusters give them."""

import pytest

from launch.sizing.gpus import find_gpu


@pytest.mark.parametrize(
    ("name", "product", "capability", "memory"),
    [
        ("h200", "H200", "9.0", 140.4),
        ("H200", "H200", "9.0", 140.4),
        ("nvidia_h200_141gb_hbm3e", "H200", "9.0", 140.4),
        ("h100", "H100", "9.0", None),
        ("nvidia_h100_80gb_hbm3", "H100", "9.0", 79.6),
        ("h100-94", "H100", "9.0", 93.6),
        ("h100nvl", "H100", "9.0", None),
        ("h100_1g.10gb", "H100", "9.0", 10.0),
        ("a100", "A100", "8.0", None),
        ("a100-sxm4-80gb", "A100", "8.0", 80.0),
        ("NVIDIA-A100-PCIE-40GB", "A100", "8.0", 40.0),
        ("a100_80g", "A100", "8.0", 80.0),
        ("a100_3g.20gb", "A100", "8.0", 20.0),
        ("a100_1g_10gb", "A100", "8.0", 10.0),
        ("a100_1g5gb", "A100", "8.0", 5.0),
        ("a10g_24gb", "A10", "8.6", 22.5),
        ("gh200", "GH200", "9.0", None),
        ("nvidia_gh200_120gb_96gb", "GH200", "9.0", 95.6),
        ("h20", "H20", "9.0", None),
        ("a10", "A10", "8.6", 22.5),
        ("a10g", "A10", "8.6", 22.5),
        ("a40", "A40", "8.6", 45.0),
        ("l4", "L4", "8.9", 22.5),
        ("l40", "L40", "8.9", 45.0),
        ("l40s", "L40S", "8.9", 45.0),
        ("b200", "B200", "10.0", 179.1),
        ("gb200", "GB200", "10.0", 184.9),
        ("b300", "B300", "10.3", 268.6),
        ("gb300", "GB300", "10.3", 277.6),
        ("tesla-v100-sxm2-32gb", "V100", "7.0", 32.0),
        ("teslav100", "V100", "7.0", None),
        ("rtx4090", "RTX 4090", "8.9", 24.0),
        ("geforce_rtx_3090", "RTX 3090", "8.6", 24.0),
        ("rtxa6000", "RTX A6000", "8.6", 48.0),
        ("rtx_6000_ada", "RTX 6000 Ada", "8.9", 48.0),
        ("nvidia_rtx_pro_6000_blackwell", "RTX PRO 6000 Blackwell", "12.0", 95.6),
        ("quadro_rtx_6000", "Quadro RTX 6000", "7.5", 24.0),
        ("gpu:8xh100", "H100", "9.0", None),
    ],
)
def test_names_of_clusters(name, product, capability, memory):
    gpu = find_gpu(name)
    assert gpu is not None
    assert (gpu.name, gpu.capability_text, gpu.memory_gib) == (product, capability, memory)


@pytest.mark.parametrize("name", [None, "", "gpu", "mi300x", "a1000", "h2000", "xl4", "fat", "t400"])
def test_other_names_are_not_guessed(name):
    assert find_gpu(name) is None


@pytest.mark.parametrize(
    ("name", "fp8", "blockwise", "fp32_scales"),
    [
        ("a100", False, "none", None),  # C26: 8.0
        ("a40", False, "none", None),
        ("l40s", True, "none", None),  # C26: 8.9
        ("h100", True, "native", "1"),
        ("h200", True, "native", "1"),
        ("b200", True, "emulated", "0"),  # C26: 10.0, the scales must be powers of two
        ("gb300", True, "emulated", "0"),
        ("rtx5090", True, "none", None),
    ],
)
def test_c26_fp8_by_generation(name, fp8, blockwise, fp32_scales):
    gpu = find_gpu(name)
    assert gpu is not None
    assert (gpu.fp8, gpu.fp8_blockwise, gpu.fp8_fp32_scales) == (fp8, blockwise, fp32_scales)


def test_a_name_without_a_size_assumes_the_smallest_usual_one():
    assert [find_gpu(name).assumed_gib for name in ("a100", "h100", "gh200", "v100")] == [40.0, 79.6, 95.6, 16.0]
    assert find_gpu("a100-80gb").assumed_gib == 80.0
