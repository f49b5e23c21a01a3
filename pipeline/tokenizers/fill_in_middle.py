"""Documents tokenized for fill-in-the-middle: the special tokens looked up, and the parts of every
rearranged document (`pipeline.tokenizers.arrangement`) tokenized and put in their order."""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U64, Mask
from pipeline.core.errors import ConfigError
from pipeline.tokenizers.arrangement import (
    AS_IS,
    COLUMNS,
    MARKERS,
    ORDERS,
    PARTS,
    SEQUENCE,
    Arrangement,
    FillInMiddle,
    arrange,
    cut_text,
)
from pipeline.tokenizers.definition import TokenizerDefinition, reference_tokenizer
from pipeline.tokenizers.engine import TextTokenizer, batch_texts, join_lists, tokenize_array


def find_markers(definition: TokenizerDefinition, tokens: Sequence[str]) -> tuple[int, int, int]:
    """The ids of the special tokens `tokens` for prefix, middle and suffix.

    Raises ConfigError unless the vocabulary has all three, text never becomes them, they differ
    from one another, BOS and EOS, and the tokenizer puts no space of its own before a text.
    """
    tokenizer = reference_tokenizer(definition)
    found: list[int] = []
    for part, token in zip(PARTS, tokens, strict=True):
        key = f"tokenize.fim.{part}"
        number = tokenizer.token_to_id(token)
        if number is None:
            special = ", ".join(map(repr, definition.added_tokens[:20])) or "none"
            raise ConfigError(
                f"{key}: the tokenizer {definition.name} has no token {token!r}; name one of its "
                f"special tokens ({special}), or add it to tokenizer.json "
                "(docs/tokenizers.md#fill-in-the-middle)"
            )
        if number in (*definition.markers, *found):
            raise ConfigError(
                f"{key}: {token!r} is in use as EOS, BOS or the token of another part; expected "
                "a special token for each part"
            )
        if number in tokenizer.encode(token, add_special_tokens=False).ids:
            raise ConfigError(
                f"{key}: the text {token!r} becomes that token itself, so it cannot mark a part; "
                f"name a special token, which is not in tokenize.special_tokens"
            )
        found.append(number)
    if _adds_space(json.loads(definition.json)):
        raise ConfigError(
            f"tokenize.fim: the tokenizer {definition.name} puts a space before every text, so "
            "each part of a document would begin with a space that is not in it; use a tokenizer "
            "without (byte-level BPE with add_prefix_space: false, Metaspace with prepend_scheme: "
            "never)"
        )
    return found[0], found[1], found[2]


def _adds_space(content: dict[str, Any]) -> bool:
    """Whether a tokenizer puts something in front of a text, as its JSON says."""
    steps = [content.get("normalizer"), content.get("pre_tokenizer")]
    while steps:
        step = steps.pop() or {}
        steps += [*step.get("normalizers", ()), *step.get("pretokenizers", ())]
        match step.get("type"):
            case "Prepend":
                return True
            case "ByteLevel" if step.get("add_prefix_space", True):
                return True
            case "Metaspace" if (
                step.get(
                    "prepend_scheme", "always" if step.get("add_prefix_space", True) else "never"
                )
                != "never"
            ):
                return True
    return False


def tokenize_rearranged(
    texts: pa.Array | pa.ChunkedArray,
    keys_N2: U64,
    may_move_N: Mask,
    tokenizer: TextTokenizer,
    rules: FillInMiddle,
) -> tuple[pa.LargeListArray, pa.Table]:
    """As `tokenize_documents`, with every document that `may_move` rearranged as its key has it;
    and `COLUMNS`."""
    ids, lengths, about = [np.zeros(0, tokenizer.definition.dtype)], [np.zeros(0, np.int64)], []
    first = 0
    for batch in batch_texts(texts):
        characters = np.array([len(text) for text in batch], np.int64)
        here = slice(first, first + len(batch))
        drawn = arrange(keys_N2[here], characters, rules).only(may_move_N[here])
        first += len(batch)
        tokens, count, columns = _tokenize_batch(batch, drawn, tokenizer, rules)
        ids.append(tokens)
        lengths.append(count)
        about.append(columns)
    table = pa.concat_tables([COLUMNS.empty_table(), *about]).combine_chunks()
    return join_lists(np.concatenate(ids), np.concatenate(lengths)), table


def _tokenize_batch(
    batch: Sequence[str], drawn: Arrangement, tokenizer: TextTokenizer, rules: FillInMiddle
) -> tuple[npt.NDArray[Any], I64, pa.Table]:
    """Tokens of all texts, one after the other; how many each has; and `COLUMNS`."""
    places = list(zip(drawn.order.tolist(), drawn.start.tolist(), drawn.stop.tolist(), strict=True))
    pieces = [cut_text(text, *place) for text, place in zip(batch, places, strict=True)]
    flat = pa.array([piece for some in pieces for piece in some], pa.large_string())
    lists = tokenize_array(flat, tokenizer)
    ends = lists.offsets.to_numpy()
    marked, markers = _place_markers(drawn.order, tokenizer.definition, rules)
    ids = np.insert(lists.values.to_numpy(), ends[marked], markers)
    of_text = np.cumsum([0, *map(len, pieces)])
    count = np.diff(ends[of_text]) + _count_markers(drawn.order, tokenizer.definition)
    return (
        ids.astype(tokenizer.definition.dtype, copy=False),
        count,
        _describe(pieces, drawn, np.diff(ends), of_text[:-1]),
    )


def _place_markers(
    order_N: U8, definition: TokenizerDefinition, rules: FillInMiddle
) -> tuple[I64, I64]:
    """The special tokens of some documents, BOS and EOS too, in order, and the piece that each is
    in front of: piece p + 1 for what is behind piece p."""
    place: list[int] = []
    markers: list[int] = []
    piece = 0
    for order in order_N.tolist():
        if definition.bos_id is not None:
            place.append(piece)
            markers.append(definition.bos_id)
        for before in MARKERS[order]:
            place += [piece] * len(before)
            markers += [rules.markers[part] for part in before]
            piece += 1
        place.append(piece)
        markers.append(definition.eos_id)
    return np.array(place, np.int64), np.array(markers, np.int64)


def _count_markers(order_N: U8, definition: TokenizerDefinition) -> I64:
    """How many special tokens each document has, (N,)."""
    return len(definition.markers) + np.where(order_N == AS_IS, 0, len(PARTS))


def _describe(
    pieces: Sequence[Sequence[str]], drawn: Arrangement, tokens_P: I64, first_N: I64
) -> pa.Table:
    """`COLUMNS` of texts whose pieces have so many tokens; `first_N`: the first piece of each."""
    rows: list[tuple[Any, ...]] = []
    for some, order, first in zip(pieces, drawn.order.tolist(), first_N.tolist(), strict=True):
        if order == AS_IS:
            rows.append(("", 0, 0, 0, 0, 0, 0))
            continue
        by_part = dict(zip(SEQUENCE[order], range(len(PARTS)), strict=True))
        sizes = (len(some[by_part[part]].encode()) for part in range(len(PARTS)))
        counts = (int(tokens_P[first + by_part[part]]) for part in range(len(PARTS)))
        rows.append((ORDERS[order], *accumulate(sizes), *counts))
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, COLUMNS, strict=True)]
    return pa.table(arrays, schema=COLUMNS)
