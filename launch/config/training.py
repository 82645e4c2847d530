"""What is trained and how: engine, rollout, actor, model, data, algorithm."""

from typing import Literal

from pydantic import Field

from launch.config.base import Section, Text


class Engine(Section):
    """verl's version and its way of running."""

    verl: Literal["0.6.1", "0.9.1"] = Field("0.9.1", description="verl's version inside the image")
    mode: Literal["one_step_off", "sync"] = Field(
        "one_step_off", description="one_step_off: separate rollout and training GPUs; sync: they share"
    )


class Rollout(Section):
    """The generation engine and, in one_step_off mode, its own pool of GPUs."""

    engine: Literal["sglang", "vllm"] = Field("sglang", description="actor_rollout_ref.rollout.name")
    nodes: int = Field(1, ge=1, description="nodes of the rollout pool (one_step_off): rollout.nnodes")
    gpus_per_node: int = Field(7, ge=1, description="GPUs of that pool on each of its nodes")
    tensor_parallel: int = Field(1, ge=1, description="rollout.tensor_model_parallel_size")
    n: int = Field(8, ge=1, description="responses for each prompt: rollout.n")
    gpu_memory_utilization: float = Field(0.7, gt=0, le=1, description="rollout.gpu_memory_utilization")
    temperature: float = Field(1.0, ge=0, description="rollout.temperature")
    top_p: float = Field(1.0, gt=0, le=1, description="rollout.top_p")
    fp8: bool = Field(False, description="quantize the rollout weights to FP8: rollout.quantization=fp8")


class Actor(Section):
    """The trained policy: parallel sizes, precision, optimizer."""

    strategy: Literal["megatron", "fsdp2"] = Field("megatron", description="actor.strategy")
    tensor_parallel: int = Field(1, ge=1, description="megatron.tensor_model_parallel_size")
    pipeline_parallel: int = Field(2, ge=1, description="megatron.pipeline_model_parallel_size")
    context_parallel: int = Field(1, ge=1, description="megatron.context_parallel_size")
    expert_parallel: int = Field(1, ge=1, description="megatron.expert_model_parallel_size")
    fp8: Literal["blockwise"] | None = Field("blockwise", description="FP8 recipe of the actor; null: bf16")
    lr: float = Field(1.0e-6, gt=0, description="learning rate: actor.optim.lr")
    mini_batch_size: int = Field(128, ge=1, description="prompts in one update: actor.ppo_mini_batch_size")
    micro_batch_size_per_gpu: int = Field(4, ge=1, description="sequences in one forward on one GPU")
    offload: list[Literal["param", "optimizer"]] = Field(
        ["optimizer"], description="what is kept in host memory between updates (megatron.*_offload)"
    )


class Model(Section):
    """The model that training starts from."""

    path: Text = Field("models/Qwen3-4B-Thinking-2507", description="Hugging Face directory")


class Data(Section):
    """Data sets (parquet files as data_prep writes them) and lengths."""

    train: list[Text] = Field(["data/train.parquet"], min_length=1, description="data.train_files")
    val: list[Text] = Field(["data/test.parquet"], min_length=1, description="data.val_files")
    train_batch_size: int = Field(256, ge=1, description="prompts in one step: data.train_batch_size")
    max_prompt_length: int = Field(2048, ge=1, description="tokens; longer prompts are left out")
    max_response_length: int = Field(4096, ge=1, description="tokens generated at most")


class Algorithm(Section):
    """The policy-gradient estimator and its KL term."""

    estimator: Literal["grpo"] = Field("grpo", description="algorithm.adv_estimator")
    use_kl_loss: bool = Field(True, description="KL to the reference model in the loss: actor.use_kl_loss")
    kl_loss_coef: float = Field(0.001, ge=0, description="actor.kl_loss_coef")
    kl_loss_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = Field(
        "low_var_kl", description="actor.kl_loss_type (verl/trainer/ppo/core_algos.py, kl_penalty)"
    )
    entropy_coeff: float = Field(0.0, description="actor.entropy_coeff")
    epochs: int = Field(1, ge=1, description="passes over the training data: trainer.total_epochs")
    total_steps: int | None = Field(None, ge=1, description="steps at most: trainer.total_training_steps")
    test_every: int = Field(5, ge=-1, description="validation every so many steps; -1: never")
