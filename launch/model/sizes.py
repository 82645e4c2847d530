"""Sizes of a model, and the parameters and cache that follow from them.

Counts are exact for the families of `launch.model.shape`; the tests compare them with the real classes.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek): ranks and head sizes. `q_rank` None: queries are not compressed."""

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters of the whole model, by where they sit.

    `head` is 0 where the embeddings are tied; `mlp` holds dense MLPs and shared experts, `experts` the routed
    ones; `active` are those that one token goes through, embedding included.
    """

    embedding: int
    head: int
    attention: int
    mlp: int
    experts: int
    router: int
    norms: int
    active: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.attention + self.mlp + self.experts + self.router + self.norms


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only language model.

    Attributes:
        architecture: first entry of `architectures`, e.g. Qwen3ForCausalLM.
        model_type: of the language model, e.g. qwen3.
        head_dim: of queries and keys.
        ffn: width of a dense MLP (0 where every layer has experts).
        max_position: `max_position_embeddings`, what verl takes as the model's limit.
        context: tokens that the rope scaling of config.json reaches, at least `max_position`.
        moe_layers: layers with experts.
        shared_ffn: width of all shared experts together; shared_gate: a gate stands before them.
        labels: outputs of a sequence classifier; None for a language model.
        notes: what the counts leave out.
    """

    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    max_position: int
    context: int
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    moe_ffn: int = 0
    moe_layers: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    mla: Mla | None = None
    labels: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.layers - self.moe_layers

    @property
    def attention_per_layer(self) -> int:
        """Parameters of one attention block, its query and key norms included."""
        hidden, mla = self.hidden, self.mla
        if mla is None:
            query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
            count = 2 * hidden * query + 2 * hidden * key
            count += (query + 2 * key) * self.qkv_bias + hidden * self.o_bias
            return count + 2 * self.head_dim * self.qk_norm
        query = self.heads * (mla.nope + mla.rope)
        rank = mla.q_rank
        count = hidden * query if rank is None else rank * (hidden + self.qkv_bias + 1 + query)
        count += (mla.kv_rank + mla.rope) * (hidden + self.qkv_bias) + mla.kv_rank
        count += mla.kv_rank * self.heads * (mla.nope + mla.value)
        return count + self.heads * mla.value * hidden + hidden * self.o_bias

    @property
    def mlp_per_layer(self) -> int:
        """Parameters of a dense MLP: gate, up, down."""
        return self._gated(self.ffn) + (2 * self.ffn + self.hidden) * self.mlp_bias

    @property
    def expert(self) -> int:
        """Parameters of one routed expert of one layer."""
        return self._gated(self.moe_ffn)

    @property
    def shared_per_layer(self) -> int:
        """Parameters of the shared experts of one layer, with their gate."""
        return self._gated(self.shared_ffn) + self.hidden * self.shared_gate

    def _gated(self, width: int) -> int:
        return 3 * self.hidden * width

    def parameters(self) -> Parameters:
        """Exact counts."""
        embedding = self.vocab * self.hidden
        head = 0 if self.tied else embedding
        if self.labels is not None:
            head = self.labels * self.hidden
        attention = self.layers * self.attention_per_layer
        mlp = self.dense_layers * self.mlp_per_layer + self.moe_layers * self.shared_per_layer
        experts = self.moe_layers * self.experts * self.expert
        router = self.moe_layers * self.experts * self.hidden
        norms = (2 * self.layers + 1) * self.hidden
        active_experts = self.moe_layers * self.experts_per_token * self.expert
        active = embedding + head + attention + mlp + active_experts + router + norms
        return Parameters(embedding, head, attention, mlp, experts, router, norms, active)

    def kv_bytes_per_token(self, tensor_parallel: int = 1, bytes_per_value: int = 2) -> int:
        """KV cache of one token on one GPU. Latent attention is not split by tensor parallelism, and a key
        head is kept whole where there are more GPUs than key heads."""
        if self.mla is not None:
            return self.layers * (self.mla.kv_rank + self.mla.rope) * bytes_per_value
        return self.layers * 2 * -(-self.kv_heads // tensor_parallel) * self.head_dim * bytes_per_value
