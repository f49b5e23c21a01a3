"""Text that goes on from a prompt."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer

from pipeline.core.errors import escape_text
from pipeline.tokenizers.decoding import decode_bytes
from pipeline.tokenizers.definition import TokenizerDefinition, reference_tokenizer
from trainer.evaluation.loaded import LoadedModel
from trainer.generation.generate import continuation
from trainer.generation.sampling import Sampling


@dataclass(frozen=True)
class GenerationOptions:
    """How to go on. `max_new_tokens`: tokens at most; `stop`: strings that end the text before
    themselves."""

    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class GeneratedText:
    """`text`: what follows the prompt; `ids`: its tokens, EOS left out; `ended`: by `eos`, by a
    `stop` string, or by its `length`."""

    text: str
    ids: tuple[int, ...]
    ended: str


def generate(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, prompt: str, wish: GenerationOptions
) -> GeneratedText:
    """Go on from `prompt`, from the start of a document where it is empty."""
    start = encode_text(tokenizer, prompt) or [tokenizer.eos_id]
    tokens = continuation(loaded, start, wish.sampling, seed=wish.seed, ids=tokenizer.vocab_size)
    ids: list[int] = []
    for token in itertools.islice(tokens, wish.max_new_tokens):
        if token == tokenizer.eos_id:
            return GeneratedText(decode_ids(tokenizer, ids), tuple(ids), "eos")
        ids.append(token)
        if wish.stop:
            text = decode_ids(tokenizer, ids)
            places = [text.find(word) for word in wish.stop if word in text]
            if places:
                return GeneratedText(text[: min(places)], tuple(ids), "stop")
    return GeneratedText(decode_ids(tokenizer, ids), tuple(ids), "length")


def encode_text(tokenizer: TokenizerDefinition, text: str) -> list[int]:
    """Token ids of a text; strings of special tokens are text."""
    return list(_encoder(tokenizer).encode(text, add_special_tokens=False).ids)


def decode_ids(tokenizer: TokenizerDefinition, ids: Sequence[int]) -> str:
    """The text of ids; a character that is cut at an end shows as U+FFFD."""
    return decode_bytes(tokenizer, np.array(ids, np.int64)).decode(errors="replace")


@functools.lru_cache(maxsize=4)
def _encoder(tokenizer: TokenizerDefinition) -> Tokenizer:
    return reference_tokenizer(tokenizer)


def escape_for_terminal(text: str) -> str:
    r"""Text of a model as a terminal may show it: lines and tabs stay, all else that is not
    printable is escaped.

    >>> escape_for_terminal("a" + chr(27) + "[2J\n\tb")
    'a\\x1b[2J\n\tb'
    """
    lines = (
        "\t".join(escape_text(p, len(p)) for p in line.split("\t")) for line in text.split("\n")
    )
    return "\n".join(lines)
