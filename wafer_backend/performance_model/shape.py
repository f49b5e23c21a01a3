"""The shape of a GPT: parameters and training FLOPs as the paper counts them.

Sources: Cerebras-GPT (arXiv 2304.03208) Tables 12 and 13. Letters: S sequence length, V vocabulary,
d width, L layers, f filter; heads times key size is d throughout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from wafer_backend.errors import BackendConfigError


@dataclass(frozen=True)
class GPTShape:
    """A decoder with learned positions, biases everywhere and a tied read-out (paper, Table 1).

    `layers`, `heads`: counts. `width`, `filter`: units. `vocabulary`: entries. `sequence_length`:
    tokens. `counted_parameters`: parameters counted on a module, None for Table 12's formula.
    Raises BackendConfigError for a value below 1.
    """

    layers: int
    width: int
    heads: int
    filter: int
    vocabulary: int
    sequence_length: int
    counted_parameters: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise BackendConfigError(f"shape of a GPT: {name} is {value}; expected at least 1")

    @property
    def parameters(self) -> int:
        """Parameters: those counted on a module, else `parameters_of`."""
        if self.counted_parameters is not None:
            return self.counted_parameters
        return parameters_of(self)


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
    """Table 12 with f for 4 d: V d + d S + L (4 d + 4 (d^2 + d) + 2 d f + f + d) + 2 d.

    >>> parameters_of(GPTShape(10, 768, 12, 3072, 50257, 2048))
    111050496
    """
    d, f = shape.width, shape.filter
    block = 4 * d + 4 * (d * d + d) + 2 * d * f + f + d
    return shape.vocabulary * d + d * shape.sequence_length + shape.layers * block + 2 * d


def layers_of(shape: GPTShape) -> tuple[Layer, ...]:
    """Table 13 cut into embeddings, blocks and read-out; forward plus backward is training.

    Backward is twice forward, but once for the embeddings (training = 3 x inference - embeddings -
    positions). A tied matrix counts once, at the embeddings. Parameters that a module has beyond
    Table 12 are spread over the blocks.
    """
    s, v, d, f = shape.sequence_length, shape.vocabulary, shape.width, shape.filter
    embedding = 2 * s * v * d + 2 * d * s
    attention = 2 * 3 * s * d * d + 2 * s * s * d + 3 * d * s * s + s * s * d + 2 * s * s * d
    dense = 2 * s * d * d + 2 * 2 * s * d * f
    block = attention + dense + 2 * 7 * s * d + 20 * f * s
    read_out = 2 * s * d * v
    embedding_parameters = min(v * d + d * s, shape.parameters)
    norm_parameters = min(2 * d, shape.parameters - embedding_parameters)
    rest = shape.parameters - embedding_parameters - norm_parameters
    return (
        Layer("embeddings", 1, embedding_parameters, embedding, embedding),
        Layer("block", shape.layers, rest / shape.layers, block, 2 * block),
        Layer("read-out", 1, norm_parameters, read_out, 2 * read_out),
    )


def training_flops_per_sequence(shape: GPTShape) -> int:
    """FLOPs of forward and backward for one sequence (Table 13).

    >>> f"{training_flops_per_sequence(GPTShape(10, 768, 12, 3072, 50257, 2048)):.4e}"
    '2.4377e+12'
    """
    return sum(
        layer.count * (layer.forward_flops + layer.backward_flops) for layer in layers_of(shape)
    )


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
    values = {field: _first(source, names) for field, names in _NAMES.items()}
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


def _first(source: Any, names: tuple[str, ...]) -> int | None:
    return next(_integers(source, names), None)


def _integers(source: Any, names: tuple[str, ...]) -> Iterator[int]:
    for name in names:
        value = getattr(source, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
