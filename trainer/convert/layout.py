"""Names and orders of tensors in another program's checkpoints, and the way there and back."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.core.errors import InputError
from trainer.config import ModelConfig
from trainer.convert import attention_rows, lazy
from trainer.convert.lazy import LazyTensor, State
from trainer.convert.parameters import shapes

_BLOCK = re.compile(r"blocks\.(\d+)\.")
QKV = "attention.qkv"


@dataclass(frozen=True)
class CheckpointLayout:
    """How a program stores a decoder.

    `names`: ours -> theirs without `.weight` and `.bias`, parts of a block without its prefix.
    `block`: their prefix of a block, with {n}. `qkv`: one name of a matrix that holds all three, or
    three names. `per_head`: rows of that one matrix go head by head. `conv1d`: matrices of blocks
    are stored transposed. `interleaved`: how rotated units are paired. `ignored`: patterns of
    constants that such files hold. `aliases`: theirs -> what some files call it instead.
    """

    names: Mapping[str, str]
    block: str
    qkv: tuple[str, ...]
    per_head: bool = False
    conv1d: bool = False
    interleaved: bool = False
    ignored: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()

    def name(self, ours: str) -> str:
        """Their name of one of our parameters other than qkv.

        Raises KeyError when they have no such parameter.
        """
        match = _BLOCK.match(ours)
        stem, _, kind = ours.rpartition(".")
        if match is None:
            return f"{self.names[stem]}.{kind}"
        return f"{self.block.format(n=match[1])}{self.names[stem[match.end() :]]}.{kind}"

    def qkv_names(self, ours: str) -> list[str]:
        """Their names of one of our qkv weights or biases."""
        match = _BLOCK.match(ours)
        assert match is not None, ours
        prefix, kind = self.block.format(n=match[1]), ours.rpartition(".")[2]
        return [f"{prefix}{name}.{kind}" for name in self.qkv]


def to_layout(state: State, config: ModelConfig, layout: CheckpointLayout) -> dict[str, LazyTensor]:
    """Their tensors from ours."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in state.items():
        if QKV in name:
            parts = _qkv_to(tensor, config, layout)
            found |= dict(zip(layout.qkv_names(name), parts, strict=True))
        else:
            found[layout.name(name)] = _turned(tensor, name, layout)
    return found


def from_layout(
    tensors: State, config: ModelConfig, layout: CheckpointLayout, drop_unmatched: bool = False
) -> tuple[dict[str, LazyTensor], list[str]]:
    """(our tensors, their names that were dropped).

    Raises InputError naming a tensor that is missing, of another shape, or unknown.
    """
    left = _named_alike(tensors, layout)
    state = {
        name: _taken(left, name, config, layout, expected)
        for name, expected in shapes(config).items()
    }
    used = {theirs for name in state for theirs in _theirs(name, layout)}
    ignored = [re.compile(pattern) for pattern in layout.ignored]
    unmatched = [
        name
        for name in left
        if name not in used and not any(pattern.fullmatch(name) for pattern in ignored)
    ]
    if unmatched and not drop_unmatched:
        raise InputError(
            f"{unmatched[0]}: no parameter of the model of this config ({len(unmatched)} such "
            "tensors); check the config, or leave them out with --drop-unmatched-keys"
        )
    return state, unmatched


def _theirs(name: str, layout: CheckpointLayout) -> list[str]:
    return layout.qkv_names(name) if QKV in name else [layout.name(name)]


def _named_alike(tensors: State, layout: CheckpointLayout) -> dict[str, LazyTensor]:
    """Aliases by their own name; the first of two that name the same tensor stays."""
    found = dict(tensors)
    for name, alias in layout.aliases:
        if alias in found:
            tensor = found.pop(alias)
            found.setdefault(name, tensor)
    return found


def _taken(
    tensors: State,
    name: str,
    config: ModelConfig,
    layout: CheckpointLayout,
    expected: tuple[int, ...],
) -> LazyTensor:
    theirs = _theirs(name, layout)
    for key in theirs:
        if key not in tensors:
            raise InputError(f"{key}: missing; the config expects it ({_near(key, tensors)})")
    parts = [tensors[key] for key in theirs]
    tensor = _qkv_from(parts, config, layout) if QKV in name else _turned(parts[0], name, layout)
    if tensor.shape != expected:
        shown = " + ".join(str(part.shape) for part in parts)
        raise InputError(
            f"{theirs[0]}: shape {shown} does not fit the config, which asks for {expected} "
            f"({name})"
        )
    return tensor


def _near(key: str, names: Iterable[str]) -> str:
    """What is there in its place: names of the same ending, or of the same beginning."""
    ending = ".".join(key.split(".")[-2:])
    found = next((name for name in names if name.endswith(ending)), next(iter(names), "nothing"))
    return f"the file has {found}"


def _turned(tensor: LazyTensor, name: str, layout: CheckpointLayout) -> LazyTensor:
    """Matrices of blocks are transposed in Conv1D layouts; the same both ways."""
    return lazy.transpose(tensor) if layout.conv1d and name.startswith("blocks.") else tensor


def _qkv_to(qkv: LazyTensor, config: ModelConfig, layout: CheckpointLayout) -> list[LazyTensor]:
    q, k, v = attention_rows.split(qkv, config)
    q = attention_rows.pair_rows(q, config, config.num_heads, layout.interleaved, back=False)
    k = attention_rows.pair_rows(k, config, config.num_kv_heads, layout.interleaved, back=False)
    if len(layout.qkv) == 3:
        return [q, k, v]
    whole = lazy.stack_rows([q, k, v])
    if layout.per_head:
        whole = lazy.reorder_rows(whole, attention_rows.per_head(config))
    return [lazy.transpose(whole) if layout.conv1d else whole]


def _qkv_from(parts: list[LazyTensor], config: ModelConfig, layout: CheckpointLayout) -> LazyTensor:
    whole = lazy.stack_rows(parts) if len(parts) > 1 else parts[0]
    whole = lazy.transpose(whole) if layout.conv1d else whole
    if layout.per_head:
        whole = lazy.reorder_rows(whole, attention_rows.inverse(attention_rows.per_head(config)))
    q, k, v = attention_rows.split(whole, config)
    if q.shape[0] + k.shape[0] + v.shape[0] != whole.shape[0]:
        return whole  # of another shape than expected, which the caller says
    q = attention_rows.pair_rows(q, config, config.num_heads, layout.interleaved, back=True)
    k = attention_rows.pair_rows(k, config, config.num_kv_heads, layout.interleaved, back=True)
    return lazy.stack_rows([q, k, v])
