"""GPT-2 byte-level BPE (50257 entries) by the `tokenizers` library.

The vocabulary files are OpenAI's encoder.json and vocab.bpe (modified MIT), as distributed under
MIT by the packages named in the LICENSE beside them. Special-token strings in text are text: no
special token is registered, so `<|endoftext|>` in a document becomes ordinary tokens and the EOS id
occurs only as our separator.
"""

import functools
import json
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.core.storage import hash_file
from pipeline.shipped import gpt2_vocabulary

VOCAB_SIZE = 50257
EOS_ID = 50256
_BATCH_CHARACTERS = 1 << 20


@functools.cache
def load() -> Tokenizer:
    """The tokenizer, built once per process."""
    directory = gpt2_vocabulary()
    vocabulary = json.loads((directory / "encoder.json").read_text(encoding="utf-8"))
    merge_lines = (directory / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in merge_lines)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def content_hash() -> str:
    """Hash of the vocabulary files: part of every fingerprint that depends on token ids."""
    directory = gpt2_vocabulary()
    return hash_file(directory / "encoder.json") + hash_file(directory / "vocab.bpe")


def encode(texts: Iterable[str]) -> Iterator[npt.NDArray[np.uint16]]:
    """Token ids of each text, (tokens,) uint16, without EOS; in batches of about a million
    characters.
    """
    tokenizer = load()
    batch: list[str] = []
    held = 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held > _BATCH_CHARACTERS:
            yield from _encode_batch(tokenizer, batch)
            batch, held = [], 0
    yield from _encode_batch(tokenizer, batch)


def _encode_batch(tokenizer: Tokenizer, batch: list[str]) -> Iterator[npt.NDArray[np.uint16]]:
    for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
        yield np.array(encoding.ids, np.uint16)


def decode_bytes(ids: npt.NDArray[np.uint16]) -> bytes:
    """The exact bytes that token ids stand for (EOS contributes nothing)."""
    table = _byte_table()
    return b"".join([table[i] for i in ids.tolist()])


@functools.cache
def _byte_table() -> list[bytes]:
    """Bytes of every token: the inverse of GPT-2's printable-byte alphabet."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
    table = [b""] * VOCAB_SIZE
    for token, number in load().get_vocab().items():
        if number != EOS_ID:
            table[number] = bytes(alphabet[c] for c in token)
    return table
