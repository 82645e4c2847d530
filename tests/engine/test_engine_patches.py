"""Every patch does what its entry says, in a process of its own; none is applied where CUDA is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from verl_runs import ROOT, Stack

from launch.rehearsal.overrides import cpu_environment

PROBES = Path(__file__).with_name("patch_probes.py")

COMMON = [
    "device_module_calls",
    "cuda_calls_on_cpu",
    "cuda_literals_on_cpu",
    "cuda_type_names",
    "pageable_offload",
    "average_by_sum",  # forks, so before the first process group
    "one_backend_for_cpu",
    "gather_scalars",
    "rng_tracker_on_cpu",
    "local_layer_spec",
    "packed_attention",
    "optimizer_state_before_resume",
    "mbridge_local_names",
    "sdpa_for_flash_attention",
]
FROM_08 = [
    "engines_on_cpu",
    "hf_server_adapter",
    "hf_replica",
    "ray_object_store_engine",
    "mbridge_save_after_dist_load",
]
ONLY_09 = ["cpu_platform"]
UNTIL_08 = ["gloo_backend_name", "cpu_index_devices"]
ONLY_08 = ["unpad_without_flash_attention"]
ONLY_06 = ["hf_sync_rollout", "weight_converter_local_names", "value_head_alone"]
VLLM = ["keep_linear_weights", "vllm_version_of_cpu_build", "pause_without_waiting"]
PARITY = "megatron_equals_hugging_face"


def run_python(python: str, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *arguments],
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def probe(stack: Stack, rollout: str, names: list[str]) -> dict[str, str | None]:
    environment = cpu_environment(stack.verl, "megatron", rollout)
    done = run_python(stack.python, [str(PROBES), str(stack.models / "policy"), *names], environment)
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert answers, done.stdout + done.stderr
    return json.loads(answers[-1].removeprefix("ANSWERS "))


@pytest.fixture(scope="module")
def answers091(stack091):
    return probe(stack091, "hf", [*COMMON, *FROM_08, *ONLY_09, PARITY])


@pytest.fixture(scope="module")
def answers080(stack080):
    return probe(stack080, "hf", [*UNTIL_08, *ONLY_08])


@pytest.fixture(scope="module")
def answers061(stack061):
    return probe(stack061, "hf", [*COMMON, *UNTIL_08, *ONLY_06, PARITY])


@pytest.mark.parametrize("name", [*COMMON, *FROM_08, *ONLY_09, PARITY])
def test_on_verl_091(answers091, name):
    assert answers091[name] is None, answers091[name]


@pytest.mark.engine
@pytest.mark.parametrize("name", [*UNTIL_08, *ONLY_08])
def test_on_verl_080(answers080, name):
    """What is done otherwise than on 0.9.1, whose packages it shares; a training goes through the rest."""
    assert answers080[name] is None, answers080[name]


@pytest.mark.engine
@pytest.mark.parametrize("name", [*COMMON, *UNTIL_08, *ONLY_06, PARITY])
def test_on_verl_061(answers061, name):
    assert answers061[name] is None, answers061[name]


@pytest.mark.engine
def test_on_vllm(stack_vllm):
    answers = probe(stack_vllm, "vllm", VLLM)
    assert answers == dict.fromkeys(VLLM)


def test_each_patch_has_a_probe_and_a_docstring():
    code = (
        "import json, verl\n"
        "from launch.rehearsal.backend.registry import PATCHES\n"
        "print(json.dumps({p.name: [list(p.series), p.apply.__doc__] for p in PATCHES.values()}))"
    )
    done = run_python(sys.executable, ["-c", code], cpu_environment("0.9.1", "megatron", "hf"))
    assert done.returncode == 0, done.stderr
    patches = json.loads(done.stdout.splitlines()[-1])
    expected = {name: ["0.6", "0.8", "0.9"] for name in COMMON}
    expected |= {name: ["0.8", "0.9"] for name in FROM_08} | {name: ["0.6", "0.8"] for name in UNTIL_08}
    expected |= {name: ["0.9"] for name in ONLY_09 + VLLM} | {name: ["0.6"] for name in ONLY_06}
    expected |= {name: ["0.8"] for name in ONLY_08}
    assert {name: series for name, (series, _) in patches.items()} == expected
    for name, (_, text) in patches.items():
        assert any(version in text for version in ("0.6.1", "0.8.0", "0.9.1", "0.15.1", "0.16.1", "0.32.0")), name
    line = next(line for line in done.stderr.splitlines() if line.startswith("[rehearsal]"))
    for name in COMMON + FROM_08 + ONLY_09 + VLLM:
        assert name in line
    for name in UNTIL_08 + ONLY_08 + ONLY_06:
        assert name not in line


def test_inactive_where_cuda_is_there():
    code = (
        "import torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "before = torch.zeros, torch.Tensor.cuda, torch.Tensor.type, torch.distributed.all_reduce\n"
        "import verl\n"
        "from launch.rehearsal.backend import load\n"
        "assert load() == []\n"
        "after = torch.zeros, torch.Tensor.cuda, torch.Tensor.type, torch.distributed.all_reduce\n"
        "assert before == after\n"
        "from verl.plugin.platform.platform_manager import PlatformRegistry\n"
        "assert PlatformRegistry.get('cpu') is None\n"
        "import megatron.core.models.gpt.gpt_layer_specs as specs\n"
        "assert not hasattr(specs.get_gpt_decoder_block_spec, '__wrapped__')\n"
    )
    environment = cpu_environment("0.9.1", "megatron", "hf") | {"VERL_PLATFORM": "cuda"}
    done = run_python(sys.executable, ["-c", code], environment)
    assert done.returncode == 0, done.stderr
    assert "CUDA is available: the CPU backend stays inactive" in done.stderr


@pytest.mark.parametrize("first", ["import verl", "import launch.rehearsal.backend.hf_server"])
def test_loaded_whoever_comes_first(first):
    code = (
        f"{first}\n"
        "import verl\n"
        "from verl.plugin.platform import get_platform\n"
        "assert get_platform().device_name == 'cpu'\n"
    )
    done = run_python(sys.executable, ["-c", code], cpu_environment("0.9.1", "megatron", "hf"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[rehearsal] CPU backend on verl 0.9.1") == 1


def test_unknown_verl_is_refused():
    from launch.rehearsal.backend.registry import install

    with pytest.raises(RuntimeError, match=r"verl 0\.6\.x, 0\.8\.x, 0\.9\.x, not 0\.7\.1"):
        install("0.7.1")


def test_a_name_is_registered_once():
    from launch.rehearsal.backend.registry import PATCHES, patch

    def some_patch(module):
        pass

    try:
        patch("a.module")(some_patch)
        with pytest.raises(ValueError, match="some_patch is registered twice"):
            patch("a.module")(some_patch)
    finally:
        PATCHES.pop("some_patch")


def test_patches_apply_right_after_the_import(tmp_path, monkeypatch):
    from launch.hooks.after_import import after_import

    (tmp_path / "patched_later.py").write_text("value = 1\n")
    (tmp_path / "copies_the_name.py").write_text("from patched_later import value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    after_import("patched_later", lambda module: setattr(module, "value", 2))
    import copies_the_name

    assert copies_the_name.value == 2
    after_import("patched_later", lambda module: setattr(module, "value", 3))  # already there: at once
    assert sys.modules["patched_later"].value == 3
