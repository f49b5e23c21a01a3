"""What a parameter is, by its name: the kinds that measures are told by.

Names are those of `trainer.model`; Q rows of `qkv.bias` come first, then K, then V.
"""

from trainer.config import ModelConfig

MATRICES = ("embedding", "read_out", "qkv", "attention_output", "ffn_in", "ffn_out")
KINDS = (*MATRICES, "norm", "bias")
SPARSE_GRADIENTS = frozenset({"embedding"})
"""Kinds whose gradients have zeros by nature: those of tokens that a batch does not hold."""

_OF_OWNER = {
    "attention.qkv": "qkv",
    "attention.output": "attention_output",
    "feed_forward.input": "ffn_in",
    "feed_forward.gate": "ffn_in",
    "feed_forward.output": "ffn_out",
    "token_embedding": "embedding",
    "position_embedding": "embedding",
    "read_out": "read_out",
}


def kind_of(name: str) -> str:
    """One of KINDS.

    >>> [kind_of(f"blocks.0.{name}") for name in ("feed_forward.gate.weight", "attention.qkv.bias")]
    ['ffn_in', 'bias']
    >>> kind_of("position_embedding.weight"), kind_of("final_norm.bias")
    ('embedding', 'norm')
    """
    owner, _, last = name.rpartition(".")
    if owner.endswith("norm"):
        return "norm"
    return "bias" if last == "bias" else _OF_OWNER[".".join(owner.split(".")[-2:])]


def has_key_bias(name: str) -> bool:
    """Whether some rows of a parameter are biases of K."""
    return name.endswith("attention.qkv.bias")


def key_rows(model: ModelConfig) -> slice:
    """The rows of `qkv.bias` that are K's."""
    first = model.num_heads * model.head_size
    return slice(first, first + model.num_kv_heads * model.head_size)
