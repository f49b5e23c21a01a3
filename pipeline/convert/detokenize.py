"""Token ids back to text, many documents at once.

Byte-level tokenizers give every token its exact bytes, so documents are put together from a table
in one pass. Others are decoded by `tokenizers`, one document at a time, and not always exactly.
"""

import functools
import json
from dataclasses import dataclass, field

import numpy as np

from dedup.arrays import I64, U8, Array
from pipeline.tokenizers.decoding import decode_bytes
from pipeline.tokenizers.definition import TokenizerDefinition

_TOKENS_AT_ONCE = 1 << 20


@functools.lru_cache(maxsize=2)
def detokenizer_of(tokenizer: TokenizerDefinition) -> "Detokenizer":
    """The detokenizer of a tokenizer, kept for the process."""
    return Detokenizer(tokenizer)


@dataclass
class Detokenizer:
    """Decodes with one tokenizer; `exact` tells whether the bytes are those that were tokenized."""

    tokenizer: TokenizerDefinition
    exact: bool = field(init=False)

    def __post_init__(self) -> None:
        decoder = json.loads(self.tokenizer.json).get("decoder")
        self.exact = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
        if self.exact:
            ids = np.arange(self.tokenizer.vocab_size)
            pieces = [decode_bytes(self.tokenizer, ids[i : i + 1]) for i in range(len(ids))]
            self._bytes: U8 = np.frombuffer(b"".join(pieces), np.uint8)
            self._lengths: I64 = np.array([len(piece) for piece in pieces], np.int64)
            self._starts: I64 = np.cumsum(self._lengths) - self._lengths

    def documents(self, tokens: Array, ends: I64) -> list[bytes]:
        """The bytes of documents that end behind `ends`, ascending, the last of which is
        len(tokens); EOS contributes nothing."""
        starts = np.concatenate([[0], ends[:-1]])
        if not self.exact:
            spans = zip(starts.tolist(), ends.tolist(), strict=True)
            return [decode_bytes(self.tokenizer, tokens[a:b]) for a, b in spans]
        data, bounds = self._flat(tokens)
        places = zip(bounds[starts].tolist(), bounds[ends].tolist(), strict=True)
        return [data[a:b] for a, b in places]

    def _flat(self, tokens: Array) -> tuple[bytes, I64]:
        """All bytes, and the offset in them of every token and of the end."""
        lengths = self._lengths[tokens]
        bounds = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        out = np.empty(int(bounds[-1]), np.uint8)
        for first in range(0, len(tokens), _TOKENS_AT_ONCE):
            last = min(first + _TOKENS_AT_ONCE, len(tokens))
            begin, end = int(bounds[first]), int(bounds[last])
            shift = self._starts[tokens[first:last]] - bounds[first:last]
            places = np.arange(begin, end) + np.repeat(shift, lengths[first:last])
            out[begin:end] = self._bytes[places]
        return out.tobytes(), bounds
