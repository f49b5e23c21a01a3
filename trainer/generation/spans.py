"""What a T5 tells: the spans that are cut out of a text, each behind its sentinel.

A prompt has sentinels, `<extra_id_0>`, `<extra_id_1>`, ..., where spans are missing; without one
the span is at its end. The encoder reads it with an EOS behind, as in training, once; the decoder
begins with its start token and tells a token at a time, reading again all that it has told.

Source: T5 (arXiv 1910.10683) section 3.1.4.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.config import ModelConfig

_SENTINEL = "<extra_id_{}>"
_SENTINELS = re.compile(r"(<extra_id_\d+>)")


@dataclass(frozen=True)
class Sentinels:
    """The ids of sentinels, in the order of spans: special tokens of the tokenizer, else those
    behind its vocabulary, which count from the end of the model's, as in T5."""

    ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: TokenizerDefinition, config: ModelConfig) -> "Sentinels":
        """Those of a model. Raises ConfigError when it has none."""
        found: list[int] = []
        while (name := _SENTINEL.format(len(found))) in tokenizer.special_ids:
            found.append(tokenizer.special_ids[name])
        behind = range(config.vocab_size - 1, tokenizer.vocab_size - 1, -1)
        if not found and not behind:
            raise ConfigError(
                f"tokenizer {tokenizer.name} has no {_SENTINEL.format(0)}, and model.vocab_size "
                f"({config.vocab_size:,}) none behind its vocabulary: the model tells no spans"
            )
        return cls(tuple(found or behind))

    def cut(self, prompt: str) -> list[str | int]:
        """The texts of a prompt and the ids of sentinels between them. Raises ConfigError for a
        sentinel that the model does not have, and for sentinels out of order."""
        parts = _SENTINELS.split(prompt)
        names = parts[1::2] or [_SENTINEL.format(0)]
        if names != [_SENTINEL.format(n) for n in range(len(names))]:
            raise ConfigError(
                f"the prompt has {', '.join(names)}; expected {_SENTINEL.format(0)}, "
                f"{_SENTINEL.format(1)}, ... in this order"
            )
        if len(names) > len(self.ids):
            raise ConfigError(f"the prompt has {len(names)} sentinels; the model {len(self.ids)}")
        pieces: list[str | int] = []
        for number, text in enumerate(parts[::2]):
            pieces += [text, self.ids[number]] if number < len(names) else [text]
        return [piece for piece in pieces if piece != ""]

    def named(self, ids: Sequence[int]) -> list[str | list[int]]:
        """Runs of ids of the text, and the names of the sentinels between them."""
        names = {each: _SENTINEL.format(number) for number, each in enumerate(self.ids)}
        pieces: list[str | list[int]] = []
        for token in ids:
            if token in names:
                pieces.append(names[token])
            elif pieces and isinstance(pieces[-1], list):
                pieces[-1].append(token)
            else:
                pieces.append([token])
        return pieces
