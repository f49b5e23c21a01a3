"""The shape of a GPT: parameters and FLOPs as the paper counts them.

Sources: Cerebras-GPT (arXiv 2304.03208) Tables 12 and 13. Table 13 counts FLOPs of LayerNorm (7 per
unit) and GELU (20 per unit) for the paper's own models. Options that those do not have (`Variant`)
are counted by us in the same manner. Letters: S sequence length, V vocabulary, d width, L layers, H
heads, f filter, q width of all heads of Q (d in the paper), k width of K and of V; t tokens of the
decoder behind an encoder.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from wafer_backend.errors import BackendConfigError

Position = Literal["learned", "fixed", "rotary", "alibi", "relative"]
Norm = Literal["layernorm", "biasless-layernorm", "rmsnorm"]
Activation = Literal["gelu", "relu", "swiglu", "geglu"]

NORM_FLOPS = {"layernorm": 7, "biasless-layernorm": 6, "rmsnorm": 4}
"""Per unit. LayerNorm as in Table 13; RMSNorm (ours): square, sum, divide, gain."""

ACTIVATION_FLOPS = {"gelu": 20, "relu": 1, "swiglu": 6, "geglu": 21}
"""Per unit of the filter. GELU as in Table 13; SwiGLU (ours): four of a sigmoid, two products;
GEGLU (ours): GELU and a product."""

ROTATION_FLOPS = 3
"""Per rotated unit (ours): two products and a sum."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Options of a decoder; the defaults are the paper's.

    `key_value_heads`: heads of K and of V, None for as many as of Q. `rotary_width`: rotated units
    of a head, None for all. `norms_per_block`: 1 where both branches of a parallel block share
    one, 4 where a norm follows each branch too. `embedding_norm`: whether embeddings have one.
    `head_norm`: of the heads of Q and K. `attention_width`: q, None for d. `experts`: feed-forward
    layers of a block; `active_experts`: of a token; `routed_experts`: what a router chooses from,
    0 without one. `tied`: the read-out is the token embedding. `head_dense`: a dense layer with
    the activation stands before the last norm. `decoder_layers`: blocks behind an encoder, 0 for
    none, which read `decoder_length` tokens; `position_buckets`: of distances, with relative
    positions. Raises BackendConfigError for a count below 1.
    """

    key_value_heads: int | None = None
    position: Position = "learned"
    rotary_width: int | None = None
    norm: Norm = "layernorm"
    norms_per_block: int = 2
    embedding_norm: bool = False
    head_norm: Norm | None = None
    attention_width: int | None = None
    experts: int = 1
    active_experts: int = 1
    routed_experts: int = 0
    activation: Activation = "gelu"
    tied: bool = True
    qkv_bias: bool = True
    output_bias: bool = True
    filter_bias: bool = True
    read_out_bias: bool = False
    head_dense: bool = False
    decoder_layers: int = 0
    decoder_length: int = 0
    position_buckets: int = 0

    def __post_init__(self) -> None:
        for name in ("key_value_heads", "rotary_width", "norms_per_block"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BackendConfigError(f"shape of a GPT: {name} is {value}; expected at least 1")

    @property
    def branches(self) -> int:
        """Matrices that read the input of a feed-forward layer."""
        return 2 if self.activation in ("swiglu", "geglu") else 1

    @property
    def norm_vectors(self) -> int:
        """Parameter vectors of a norm: gain, and bias of a LayerNorm."""
        return count_norm_vectors(self.norm)


def count_norm_vectors(norm: Norm) -> int:
    """Parameter vectors of a norm: gain, and bias of a LayerNorm that has one."""
    return 2 if norm == "layernorm" else 1


@dataclass(frozen=True, kw_only=True)
class GPTShape:
    """A decoder; without a `variant` one with learned positions, LayerNorm, GELU, biases everywhere
    and a tied read-out (paper, Table 1).

    `layers`, `heads`: counts. `width`, `filter`: units. `vocabulary`: entries. `sequence_length`:
    tokens. `counted_parameters`: parameters counted on a module, None for those of the formula.
    Raises BackendConfigError for a value below 1.
    """

    layers: int
    width: int
    heads: int
    filter: int
    vocabulary: int
    sequence_length: int
    counted_parameters: int | None = None
    variant: Variant = field(default_factory=Variant)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise BackendConfigError(f"shape of a GPT: {name} is {value}; expected at least 1")

    @property
    def parameters(self) -> int:
        """Parameters: those counted on a module, else `parameters_of`."""
        if self.counted_parameters is not None:
            return self.counted_parameters
        return parameters_of(self)

    @property
    def positions(self) -> int:
        """Tokens of a sample, those of a decoder behind an encoder included."""
        return self.sequence_length + self.variant.decoder_length

    @property
    def key_value_width(self) -> int:
        """k: units of all heads of K."""
        heads = self.variant.key_value_heads
        return self.query_width if heads is None else self.head_width * heads

    @property
    def query_width(self) -> int:
        """q: units of all heads of Q."""
        return self.variant.attention_width or self.width

    @property
    def head_width(self) -> int:
        """Units of a head."""
        return self.query_width // self.heads


@dataclass(frozen=True)
class Layer:
    """`count` equal layers that stream one after the other.

    `parameters`: of one. `forward_flops`, `backward_flops`: of one, per sequence.
    """

    name: str
    count: int
    parameters: float
    forward_flops: int
    backward_flops: int


def parameters_of(shape: GPTShape) -> int:
    """Table 12 with f for 4 d: V d + d S + L (4 d + 4 (d^2 + d) + 2 d f + f + d) + 2 d; fewer or
    more as the variant says.

    >>> size = {"layers": 10, "width": 768, "heads": 12, "filter": 3072}
    >>> parameters_of(GPTShape(**size, vocabulary=50257, sequence_length=2048))
    111050496
    """
    blocks = shape.layers * _block_parameters(shape)
    behind = shape.variant.decoder_layers * _decoder_block_parameters(shape)
    return _embedding_parameters(shape) + blocks + behind + _read_out_parameters(shape)


def _embedding_parameters(shape: GPTShape) -> int:
    """Biases of relative positions included, those of both stacks."""
    positions = shape.sequence_length if shape.variant.position == "learned" else 0
    norm = shape.variant.norm_vectors if shape.variant.embedding_norm else 0
    biases = 2 * shape.variant.position_buckets * shape.heads
    return (shape.vocabulary + positions + norm) * shape.width + biases


def _block_parameters(shape: GPTShape) -> int:
    d, f, variant = shape.width, shape.filter, shape.variant
    bias = variant.filter_bias
    norms = variant.norms_per_block * variant.norm_vectors * d
    if variant.head_norm is not None:
        norms += 2 * count_norm_vectors(variant.head_norm) * shape.head_width
    attention = _attention_parameters(shape)
    expert = variant.branches * (d + bias) * f + (f + bias) * d
    return norms + attention + variant.experts * expert + variant.routed_experts * d


def _attention_parameters(shape: GPTShape) -> int:
    d, q, k, variant = shape.width, shape.query_width, shape.key_value_width, shape.variant
    return (d + variant.qkv_bias) * (q + 2 * k) + (q + variant.output_bias) * d


def _decoder_block_parameters(shape: GPTShape) -> int:
    """Those of a block, with attention to the encoder and its norm."""
    norm = shape.variant.norm_vectors * shape.width
    return _block_parameters(shape) + _attention_parameters(shape) + norm


def _read_out_parameters(shape: GPTShape) -> int:
    """The dense layer of the head, the last norm, with a decoder that of the encoder too, and what
    the read-out does not share with the embeddings."""
    d, v, variant = shape.width, shape.vocabulary, shape.variant
    return (
        variant.head_dense * (d + 1) * d
        + (2 if variant.decoder_layers else 1) * variant.norm_vectors * d
        + (0 if variant.tied else v * d)
        + variant.read_out_bias * v
    )


def list_layers(shape: GPTShape) -> tuple[Layer, ...]:
    """Table 13 cut into embeddings, blocks, those of a decoder behind an encoder, and read-out;
    forward plus backward is training.

    Backward is twice forward, but once for the embeddings (training = 3 x inference - embeddings -
    positions). A tied matrix counts once, at the embeddings. Parameters that a module has beyond
    the formula are spread over the blocks.
    """
    s, v, d, variant = shape.sequence_length, shape.vocabulary, shape.width, shape.variant
    positions = 2 * d * s if variant.position in ("learned", "fixed") else 0
    norm = NORM_FLOPS[variant.norm] * s * d if variant.embedding_norm else 0
    told = variant.decoder_length or s
    embedding, block, read_out = (
        2 * shape.positions * v * d + positions + norm,
        _block_flops(shape, s),
        2 * told * d * v + _head_flops(shape),
    )
    first = min(_embedding_parameters(shape), shape.parameters)
    last = min(_read_out_parameters(shape), shape.parameters - first)
    behind = _decoder_layers(shape)
    rest = shape.parameters - first - last - sum(layer.count * layer.parameters for layer in behind)
    return (
        Layer("embeddings", 1, first, embedding, embedding),
        Layer("block", shape.layers, rest / shape.layers, block, 2 * block),
        *behind,
        Layer("read-out", 1, last, read_out, 2 * read_out),
    )


def _decoder_layers(shape: GPTShape) -> tuple[Layer, ...]:
    """The blocks behind an encoder, if any: those of its own tokens, with attention to the
    encoder's, and a norm before it."""
    variant, t = shape.variant, shape.variant.decoder_length
    if not variant.decoder_layers:
        return ()
    block = _block_flops(shape, t) + _attention_flops(shape, t, shape.sequence_length)
    block += NORM_FLOPS[variant.norm] * t * shape.width
    count, parameters = variant.decoder_layers, _decoder_block_parameters(shape)
    return (Layer("decoder block", count, parameters, block, 2 * block),)


def _head_flops(shape: GPTShape) -> int:
    """Of the dense layer before the last norm, and its activation."""
    s, d, variant = shape.sequence_length, shape.width, shape.variant
    return variant.head_dense * (2 * s * d * d + ACTIVATION_FLOPS[variant.activation] * s * d)


def _block_flops(shape: GPTShape, s: int) -> int:
    """Forward FLOPs of a block for s tokens: attention; feed-forward; norms; activation; positions
    that act inside attention."""
    d, f, variant = shape.width, shape.filter, shape.variant
    q, k = shape.query_width, shape.key_value_width
    attention = _attention_flops(shape, s, s)
    active = variant.active_experts
    dense = 2 * (variant.branches + 1) * s * d * f * active
    dense += 2 * s * d * variant.routed_experts
    norms = variant.norms_per_block * NORM_FLOPS[variant.norm] * s * d
    if variant.head_norm is not None:
        norms += NORM_FLOPS[variant.head_norm] * s * (q + k)
    activation = ACTIVATION_FLOPS[variant.activation] * f * s * active
    return attention + dense + norms + activation + _position_flops(shape, s)


def _attention_flops(shape: GPTShape, s: int, keys: int) -> int:
    """Q of s tokens, K and V of `keys`; logits, softmax (two lines of Table 13), its product with
    V; output projection."""
    d, q, k = shape.width, shape.query_width, shape.key_value_width
    projections = 2 * s * d * q + 4 * keys * d * k
    mixing = 2 * s * keys * q + 3 * q * s * keys + s * keys * q + 2 * s * keys * q
    return projections + mixing + 2 * s * q * d


def _position_flops(shape: GPTShape, s: int) -> int:
    """Rotation of Q and K, or the sum of a bias on every logit."""
    variant, head = shape.variant, shape.head_width
    if variant.position in ("alibi", "relative"):
        return s**2 * shape.heads
    if variant.position != "rotary":
        return 0
    heads = shape.heads + (variant.key_value_heads or shape.heads)
    return ROTATION_FLOPS * s * heads * (variant.rotary_width or head)


def training_flops_per_sequence(shape: GPTShape) -> int:
    """FLOPs of forward and backward for one sequence (Table 13).

    >>> size = {"layers": 10, "width": 768, "heads": 12, "filter": 3072}
    >>> shape = GPTShape(**size, vocabulary=50257, sequence_length=2048)
    >>> f"{training_flops_per_sequence(shape):.4e}"
    '2.4377e+12'
    """
    return sum(
        layer.count * (layer.forward_flops + layer.backward_flops) for layer in list_layers(shape)
    )


def inference_flops_per_sequence(shape: GPTShape) -> int:
    """FLOPs of forward alone, for one sequence that is read at once (Table 13)."""
    return sum(layer.count * layer.forward_flops for layer in list_layers(shape))


_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "layers"),
    "width": ("hidden_size", "n_embd", "d_model", "width"),
    "heads": ("num_heads", "num_attention_heads", "n_head", "heads"),
    "filter": ("filter_size", "intermediate_size", "n_inner", "filter"),
    "vocabulary": ("vocab_size", "vocabulary"),
    "sequence_length": ("max_position_embeddings", "n_positions", "block_size", "n_ctx"),
}
"""Attribute names of Model Zoo, Hugging Face, nanoGPT and gigaGPT configs, in this order."""


def shape_of(module: nn.Module) -> GPTShape:
    """Shape of a module (also on meta): `module.gpt_shape`, else read from `module.config`, else
    from the module's own attributes; parameters are counted, tied ones once.

    Raises BackendConfigError naming what is not found.
    """
    counted = sum(parameter.numel() for parameter in module.parameters())
    given = getattr(module, "gpt_shape", None)
    if isinstance(given, GPTShape):
        return GPTShape(**{**vars(given), "counted_parameters": counted})
    source = getattr(module, "config", module)
    values: dict[str, Any] = {
        field: next(_integers(source, names), None) for field, names in _NAMES.items()
    }
    if values["filter"] is None and values["width"] is not None:
        values["filter"] = 4 * values["width"]
    missing = [field for field, value in values.items() if value is None]
    if missing:
        tried = " or ".join(_NAMES[missing[0]])
        raise BackendConfigError(
            f"{type(module).__name__}: cannot read {', '.join(missing)} of the model (tried {tried}"
            "); give the module an attribute `gpt_shape`, or pass a GPTShape"
        )
    return GPTShape(**{k: v for k, v in values.items() if v}, counted_parameters=counted)


def _integers(source: Any, names: tuple[str, ...]) -> Iterator[int]:
    for name in names:
        value = getattr(source, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
