"""What is trained and with which sizes: engine, rollout, actor, critic, model, data."""

from typing import Literal

from pydantic import Field

from launch.config.base import Section, Text, becomes

_ACTOR = "actor_rollout_ref.actor"
_MEGATRON = f"{_ACTOR}.megatron"
_ROLLOUT = "actor_rollout_ref.rollout"


class Engine(Section):
    """verl's version and its way of running."""

    verl: Literal["0.6.1", "0.8.0", "0.9.1"] = Field("0.9.1", description="verl's version inside the image")
    mode: Literal["one_step_off", "sync"] = Field(
        "one_step_off", description="one_step_off: separate rollout and training GPUs; sync: they share"
    )


class Rollout(Section):
    """The generation engine and, in one_step_off mode, its own pool of GPUs."""

    engine: Literal["sglang", "vllm"] = Field(
        "sglang", description="generation engine", json_schema_extra=becomes(f"{_ROLLOUT}.name")
    )
    nodes: int | None = Field(
        None,
        ge=1,
        description="nodes of the rollout pool (one_step_off): rollout.nnodes; null: half of the nodes",
    )
    gpus_per_node: int | None = Field(
        None,
        ge=1,
        description="GPUs of that pool on each of its nodes (one_step_off): rollout.n_gpus_per_node; null: all "
        "that the reward server leaves, on one node half of them",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="GPUs that one copy of the engine spans",
        json_schema_extra=becomes(f"{_ROLLOUT}.tensor_model_parallel_size"),
    )
    n: int = Field(8, ge=1, description="responses for each prompt", json_schema_extra=becomes(f"{_ROLLOUT}.n"))
    gpu_memory_utilization: float = Field(
        0.7,
        gt=0,
        le=1,
        description="share of a GPU's memory for weights and KV cache",
        json_schema_extra=becomes(f"{_ROLLOUT}.gpu_memory_utilization"),
    )
    temperature: float = Field(
        1.0,
        ge=0,
        description="sampling temperature; 0: greedy",
        json_schema_extra=becomes(f"{_ROLLOUT}.temperature"),
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="nucleus sampling", json_schema_extra=becomes(f"{_ROLLOUT}.top_p")
    )
    fp8: bool = Field(False, description="quantize the rollout weights to FP8: rollout.quantization=fp8")
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="tokens that the engine takes; null: max_prompt_length + max_response_length",
        json_schema_extra=becomes(f"{_ROLLOUT}.max_model_len"),
    )
    max_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens of one prefill batch; null: verl's default (8192)",
        json_schema_extra=becomes(f"{_ROLLOUT}.max_num_batched_tokens"),
    )
    chunked_prefill: bool = Field(
        True,
        description="split long prompts over several batches",
        json_schema_extra=becomes(f"{_ROLLOUT}.enable_chunked_prefill"),
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        description="sequences decoded at once; null: verl's default",
        json_schema_extra=becomes(f"{_ROLLOUT}.max_num_seqs"),
    )
    enforce_eager: bool | None = Field(
        None,
        description="no CUDA graphs; null: verl's default (false)",
        json_schema_extra=becomes(f"{_ROLLOUT}.enforce_eager"),
    )
    free_cache: bool | None = Field(
        None,
        description="give the KV cache's memory back while the actor trains (sync); null: verl's default",
        json_schema_extra=becomes(f"{_ROLLOUT}.free_cache_engine"),
    )


class Actor(Section):
    """The trained policy: parallel sizes, precision, optimizer."""

    strategy: Literal["megatron", "fsdp2"] = Field(
        "megatron", description="training backend", json_schema_extra=becomes(f"{_ACTOR}.strategy")
    )
    gpus_per_node: int | None = Field(
        None,
        ge=1,
        description="GPUs of the training pool on each of its nodes: trainer.n_gpus_per_node; null: as many as "
        "the other pools leave and the batch divides by",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="GPUs that split each layer (megatron)",
        json_schema_extra=becomes(f"{_MEGATRON}.tensor_model_parallel_size"),
    )
    pipeline_parallel: int = Field(
        2,
        ge=1,
        description="GPUs that split the layers among them (megatron)",
        json_schema_extra=becomes(f"{_MEGATRON}.pipeline_model_parallel_size"),
    )
    context_parallel: int = Field(
        1,
        ge=1,
        description="GPUs that split each sequence (megatron); with fsdp2: ulysses_sequence_parallel_size",
        json_schema_extra=becomes(f"{_MEGATRON}.context_parallel_size"),
    )
    expert_parallel: int = Field(
        1,
        ge=1,
        description="GPUs that split the experts of an MoE layer (megatron)",
        json_schema_extra=becomes(f"{_MEGATRON}.expert_model_parallel_size"),
    )
    expert_tensor_parallel: int | None = Field(
        None,
        ge=1,
        description="GPUs that split each expert (megatron); null: tensor_parallel",
        json_schema_extra=becomes(f"{_MEGATRON}.expert_tensor_parallel_size"),
    )
    sequence_parallel: bool = Field(
        True,
        description="split layer norms and dropout along the sequence, with tensor_parallel > 1 (megatron)",
        json_schema_extra=becomes(f"{_MEGATRON}.sequence_parallel"),
    )
    fp8: Literal["blockwise"] | None = Field(
        "blockwise", description="FP8 recipe of the actor (megatron): override_transformer_config.fp8; null: bf16"
    )
    lr: float = Field(1.0e-6, gt=0, description="learning rate", json_schema_extra=becomes(f"{_ACTOR}.optim.lr"))
    mini_batch_size: int = Field(
        128,
        ge=1,
        description="prompts in one update",
        json_schema_extra=becomes(f"{_ACTOR}.ppo_mini_batch_size"),
    )
    micro_batch_size_per_gpu: int = Field(
        4,
        ge=1,
        description="sequences in one forward on one GPU",
        json_schema_extra=becomes(f"{_ACTOR}.ppo_micro_batch_size_per_gpu"),
    )
    dynamic_batch: bool = Field(
        False,
        description="fill micro batches by tokens instead of sequences",
        json_schema_extra=becomes(f"{_ACTOR}.use_dynamic_bsz"),
    )
    max_tokens_per_gpu: int | None = Field(
        None,
        ge=1,
        description="tokens of one micro batch on one GPU, with dynamic_batch; null: verl's default (16384)",
        json_schema_extra=becomes(f"{_ACTOR}.ppo_max_token_len_per_gpu"),
    )
    recompute: bool | None = Field(
        None,
        description="compute activations again in the backward pass: override_transformer_config.recompute_* "
        "(megatron), model.enable_gradient_checkpointing (fsdp2); null: verl's default",
    )
    offload: list[Literal["param", "optimizer"]] = Field(
        ["optimizer"], description="what is kept in host memory between updates: *_offload"
    )


class Critic(Section):
    """The value model of the estimator gae. It trains on the actor's GPUs with the actor's parallel sizes."""

    path: Text | None = Field(None, description="Hugging Face directory it starts from; null: model.path")
    lr: float = Field(1.0e-5, gt=0, description="learning rate", json_schema_extra=becomes("critic.optim.lr"))
    micro_batch_size_per_gpu: int | None = Field(
        None, ge=1, description="sequences in one forward: critic.ppo_micro_batch_size_per_gpu; null: the actor's"
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        description="steps that train the critic alone at first",
        json_schema_extra=becomes("trainer.critic_warmup"),
    )
    clip_range: float = Field(
        0.5, gt=0, description="clip range of the value loss", json_schema_extra=becomes("critic.cliprange_value")
    )
    offload: list[Literal["param", "optimizer"]] = Field(
        ["optimizer"], description="what is kept in host memory between updates: *_offload"
    )


class Model(Section):
    """The model that training starts from."""

    path: Text = Field(
        "models/Qwen3-4B-Thinking-2507", description="Hugging Face directory: actor_rollout_ref.model.path"
    )


class Data(Section):
    """Data sets (parquet files as data_prep writes them) and lengths."""

    train: list[Text] = Field(["data/train.parquet"], min_length=1, description="data.train_files")
    val: list[Text] = Field(["data/test.parquet"], min_length=1, description="data.val_files")
    train_batch_size: int = Field(
        256, ge=1, description="prompts in one step", json_schema_extra=becomes("data.train_batch_size")
    )
    max_prompt_length: int = Field(
        2048,
        ge=1,
        description="tokens; longer prompts are left out",
        json_schema_extra=becomes("data.max_prompt_length"),
    )
    max_response_length: int = Field(
        4096, ge=1, description="tokens generated at most", json_schema_extra=becomes("data.max_response_length")
    )
    shuffle: bool = Field(
        True,
        description="shuffle the training data; false keeps a curriculum",
        json_schema_extra=becomes("data.shuffle"),
    )
    seed: int | None = Field(
        None, description="seed of that shuffling; null: verl's default", json_schema_extra=becomes("data.seed")
    )
