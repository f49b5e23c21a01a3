"""How well a tokenizer fits each source of a corpus: bytes per token and tokens per word.

A word is a run between white space (`str.split`), so fertility compares tokenizers on one language
rather than languages with each other: Chinese has few such words.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from pipeline.tokenizers.engine import TextTokenizer, tokenize_texts


@dataclass(frozen=True)
class Fertility:
    """Counts over the documents of one source; EOS is not counted."""

    source: str
    documents: int
    text_bytes: int
    """UTF-8 bytes."""
    characters: int
    words: int
    tokens: int

    @property
    def bytes_per_token(self) -> float:
        """Compression: more is better; 0 where there are no tokens."""
        return self.text_bytes / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_word(self) -> float:
        """Fertility: 1 would be a vocabulary of whole words; 0 where there are no words."""
        return self.tokens / self.words if self.words else 0.0

    def __add__(self, other: "Fertility") -> "Fertility":
        return Fertility(
            self.source,
            self.documents + other.documents,
            self.text_bytes + other.text_bytes,
            self.characters + other.characters,
            self.words + other.words,
            self.tokens + other.tokens,
        )


def measure_fertility(
    batches: Iterable[tuple[str, pa.Array]], tokenizer: TextTokenizer
) -> tuple[Fertility, ...]:
    """One row per source, sorted by name, and last a row `all`.

    `batches` are (source, texts) pairs with texts an Arrow array of strings; a source may come in
    several batches.
    """
    sources: dict[str, Fertility] = {}
    for source, texts in batches:
        found = _count(source, texts, tokenizer)
        sources[source] = sources[source] + found if source in sources else found
    total = Fertility("all", 0, 0, 0, 0, 0)
    for counts in sources.values():
        total = total + counts
    return (*(sources[name] for name in sorted(sources)), total)


def _count(source: str, texts: pa.Array, tokenizer: TextTokenizer) -> Fertility:
    tokens = len(tokenize_texts(texts, tokenizer).values)
    strings = texts.to_pylist()
    return Fertility(
        source,
        len(strings),
        sum(len(text.encode()) for text in strings),
        sum(map(len, strings)),
        sum(len(text.split()) for text in strings),
        tokens,
    )
