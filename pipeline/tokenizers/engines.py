"""The programs that can turn text into ids, behind one interface, each on one thread.

| engine | what it is | special tokens in text stay text by |
|---|---|---|
| fastokens | Rust, bounded caches, flat output | `split_special_tokens` |
| gigatoken | Rust, caches that grow for ever | a tokenizer.json without its special added tokens |
| tokenizers | the oracle | `encode_special_tokens` |

None but the oracle is trusted: self_check.py decides which of them may be used for a tokenizer.
The first two are optional and imported by name, so that a missing one costs nothing.

Limits: one word without any break (64 MiB of one letter) takes the engines about half a minute and
3 GB, and `tokenizers` more: BPE keeps the whole word in memory. Documents are never cut.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Protocol

import numpy as np

from dedup.arrays import I64, U32
from pipeline.core.storage import hash_bytes
from pipeline.tokenizers.definition import TokenizerDefinition, reference_tokenizer

REFERENCE = "tokenizers"
_THREADS = {
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_GIGATOKEN_RENEWAL = 1 << 26
_LONG_S = "'\u017f"


@dataclass(frozen=True)
class FlatTokens:
    """Ids of N texts, one after another: ids (tokens,) uint32, text i is offsets[i]:offsets[i+1]
    with offsets (N + 1,) int64.
    """

    ids: U32
    offsets: I64


class Engine(Protocol):
    """Ids of texts for one tokenizer; built from its definition."""

    def __init__(self, definition: TokenizerDefinition) -> None: ...

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """Ids without any added BOS or EOS; special-token strings are text."""
        ...


class Fastokens:
    """fastokens, `encode_batch_flat`.

    Where a tokenizer folds case in contractions (`(?i:'s|...)`), `tokenizers` reads an apostrophe
    and a long s (U+017F) as one after a word, and the o200k scanner of fastokens 0.3.5 does not.
    The rare texts that hold the two go to the oracle.
    """

    def __init__(self, definition: TokenizerDefinition) -> None:
        _use_one_thread()
        self._tokenizer = import_module("fastokens").Tokenizer.from_json_str(definition.json)
        folds_case = "(?i" in json.dumps(json.loads(definition.json).get("pre_tokenizer"))
        self._oracle = Reference(definition) if folds_case else None

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        rare = [i for i, text in enumerate(texts) if _LONG_S in text] if self._oracle else []
        if self._oracle is None or not rare:
            return self._encode(texts)
        common = sorted({*range(len(texts))}.difference(rare))
        flat = self._encode([texts[i] for i in common])
        slow = self._oracle.encode([texts[i] for i in rare])
        return _interleaved(((common, flat), (rare, slow)))

    def _encode(self, texts: Sequence[str]) -> FlatTokens:
        ids, offsets = self._tokenizer.encode_batch_flat(
            list(texts), add_special_tokens=False, split_special_tokens=True
        )
        return FlatTokens(
            np.frombuffer(ids, "<u4").astype(np.uint32, copy=False),
            np.frombuffer(offsets, "<u8").astype(np.int64),
        )


class Gigatoken:
    """gigatoken, `encode_batch`; built anew after 64 Mi characters, which bounds its caches."""

    def __init__(self, definition: TokenizerDefinition) -> None:
        _use_one_thread()
        content = json.loads(definition.json)
        tokens = content.get("added_tokens") or []
        content["added_tokens"] = [token for token in tokens if not token.get("special")]
        self._json = json.dumps(content, ensure_ascii=False)
        self._build: Callable[[str], Any] = import_module("gigatoken").Tokenizer.from_json
        self._tokenizer = self._build(self._json)
        self._characters = 0

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        if not texts:
            return FlatTokens(np.zeros(0, np.uint32), np.zeros(1, np.int64))
        if self._characters > _GIGATOKEN_RENEWAL:
            self._tokenizer, self._characters = self._build(self._json), 0
        self._characters += sum(map(len, texts))
        layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data, np.uint32)
        return FlatTokens(ids[offsets[0] : offsets[-1]], offsets - offsets[0])


class Reference:
    """`tokenizers`, the oracle itself: slow, and right by definition."""

    def __init__(self, definition: TokenizerDefinition) -> None:
        _use_one_thread()
        self.tokenizer = reference_tokenizer(definition)

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return _joined([np.array(encoding.ids, np.uint32) for encoding in encodings])


ENGINES: dict[str, type[Engine]] = {
    "fastokens": Fastokens,
    "gigatoken": Gigatoken,
    REFERENCE: Reference,
}
"""Every engine, the preferred one first; the name is also that of its distribution."""


def _interleaved(parts: Sequence[tuple[Sequence[int], FlatTokens]]) -> FlatTokens:
    """Tokens of texts that were encoded in parts; each part names the places of its texts."""
    rows = {
        place: flat.ids[flat.offsets[row] : flat.offsets[row + 1]]
        for places, flat in parts
        for row, place in enumerate(places)
    }
    return _joined([rows[place] for place in range(len(rows))])


def _joined(rows: Sequence[U32]) -> FlatTokens:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return FlatTokens(np.concatenate([np.zeros(0, np.uint32), *rows]), offsets)


def installed_build(name: str) -> str | None:
    """Version of an engine's distribution and a hash of the list of its files, or None."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return f"{found.version} {hash_bytes((found.read_text('RECORD') or '').encode())[:12]}"


def installed_version(name: str) -> str:
    """Version of an engine that is installed, for messages."""
    return distribution(name).version


def _use_one_thread() -> None:
    """Workers are processes: one thread each, unless the environment says otherwise. Ids do not
    depend on it.
    """
    for variable, value in _THREADS.items():
        os.environ.setdefault(variable, value)
