"""Ids back to bytes.

Byte-level tokenizers give every token its exact bytes, so any slice of a stream decodes, also in
the middle of a character. Others decode by `tokenizers`, whole texts only and not always exactly
(normalizers and added spaces cannot be undone).
"""

import functools
import json

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.tokenizers.definition import TokenizerDefinition, reference_tokenizer


def decode_bytes(definition: TokenizerDefinition, ids: npt.NDArray[np.integer]) -> bytes:
    """The bytes that `ids` stand for, (tokens,) of any integer type; EOS contributes nothing.

    >>> from pipeline.tokenizers.definition import load_definition
    >>> decode_bytes(load_definition("gpt2"), np.array([15496, 995, 50256]))
    b'Hello world'
    """
    table = _byte_table(definition)
    if table is not None:
        return b"".join([table[i] for i in ids.tolist()])
    texts = ids[ids != definition.eos_id].tolist()
    return str(_tokenizer(definition).decode(texts, skip_special_tokens=False)).encode()


@functools.lru_cache(maxsize=4)
def _tokenizer(definition: TokenizerDefinition) -> Tokenizer:
    return reference_tokenizer(definition)


@functools.lru_cache(maxsize=4)
def _byte_table(definition: TokenizerDefinition) -> list[bytes] | None:
    """Bytes of every id of a byte-level tokenizer; None for other tokenizers."""
    content = json.loads(definition.json)
    if not _is_byte_level(content.get("decoder")):
        return None
    alphabet = {character: byte for byte, character in enumerate(_printable_bytes())}
    table = [b""] * definition.vocab_size
    for token, number in content["model"]["vocab"].items():
        if all(character in alphabet for character in token):
            table[number] = bytes(alphabet[character] for character in token)
        else:
            table[number] = token.encode()
    for added in content.get("added_tokens") or []:
        table[added["id"]] = added["content"].encode()
    table[definition.eos_id] = b""
    return table


def _is_byte_level(decoder: object) -> bool:
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"


def _printable_bytes() -> str:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's encoder.py)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))
