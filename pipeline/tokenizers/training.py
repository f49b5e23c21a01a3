"""Train a byte-level BPE tokenizer on texts by `tokenizers`, and measure how well one fits a
source.

Equal texts and equal settings give equal bytes, in any order and on any number of threads. Which
characters make a word decides how far merges can reach (`words`):

* `gpt2`: letters, numbers or other characters, with one space before (GPT-2, Radford et al. 2019).
  Combining marks are "other", so vocalised Arabic and Indic scripts fall into pieces.
* `marks`: OpenAI's o200k_base: marks belong to their letters, a word breaks before a capital that
  follows small letters, numbers are cut into groups of three.

Limits: `tokenizers` counts all words in memory before it merges (40 MB of text: 0.3 GB on one
thread, 0.65 GB on seven): train on a sample. Fertility counts words between white space, so it
compares tokenizers on one language: Chinese has few such words.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.storage import canonical_json, publish
from pipeline.core.words import pluralise
from pipeline.tokenizers.engine import TextTokenizer, tokenize_array

EOS = "<|endoftext|>"
SMALLEST_VOCABULARY = 257
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MARKS = "|".join(
    (
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


@dataclass(frozen=True)
class TrainingSettings:
    """What to train."""

    vocab_size: int = 32_768
    """Tokens in the vocabulary, bytes and special tokens included."""
    min_frequency: int = 2
    """How often a pair must occur to become a token."""
    words: Literal["gpt2", "marks"] = "marks"
    """Where words break."""
    eos: str = EOS
    """The token that ends documents; it has the largest id."""
    special: tuple[str, ...] = ()
    """More special tokens, such as [MASK]; they have the ids before it, in this order."""


def train_tokenizer(
    texts: Iterable[str], settings: TrainingSettings | None = None, progress: bool = False
) -> str:
    """The `tokenizer.json` of a byte-level BPE trained on `texts`.

    Raises ConfigError for a vocabulary that cannot hold the bytes and InputError when the texts
    hold too little for the vocabulary asked for.
    """
    settings = settings or TrainingSettings()
    special = (*settings.special, settings.eos)
    for token in special:
        if token.encode(errors="ignore").decode() != token:
            raise ConfigError(f"special token {escape_text(token)}: expected UTF-8")
    if len(set(special)) < len(special) or "" in special:
        raise ConfigError(
            f"special tokens {', '.join(map(escape_text, special))}: each must be there once, EOS "
            "among them, and none may be empty"
        )
    if settings.vocab_size < (smallest := SMALLEST_VOCABULARY + len(settings.special)):
        raise ConfigError(
            f"vocab_size {settings.vocab_size}: expected at least {smallest} (256 bytes and "
            f"{pluralise(len(special), 'special token')})"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _word_breaks(settings)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size - len(special),
        min_frequency=settings.min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    for token in special:
        if tokenizer.token_to_id(token) is not None:
            name = "eos" if token == settings.eos else "special token"
            raise ConfigError(
                f"{name} {token!r}: this vocabulary has it for bytes or for a word of the texts; "
                "choose another string"
            )
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size < settings.vocab_size:
        raise InputError(
            f"the texts only have enough pairs for {size} tokens (each pair at least "
            f"{settings.min_frequency} times), not {settings.vocab_size}: give more text or a "
            "smaller vocab_size"
        )
    return str(tokenizer.to_str(pretty=True))


def save_tokenizer(directory: Path, content: str, eos: str = EOS) -> Path:
    """Publish `tokenizer.json`, and the `tokenizer_config.json` that names its EOS; returns the
    path of the first. Raises InputError when another tokenizer stands there.
    """
    path = directory / "tokenizer.json"
    data = (json.dumps(json.loads(content), ensure_ascii=False, indent=1) + "\n").encode()
    if path.exists() and path.read_bytes() != data:
        raise InputError(f"{path}: it already holds another tokenizer; choose another directory")
    config = {"eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast"}
    publish(path.with_name("tokenizer_config.json"), canonical_json(config))
    publish(path, data)
    return path


def _word_breaks(settings: TrainingSettings) -> pre_tokenizers.PreTokenizer:
    if settings.words == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_MARKS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclass(frozen=True, kw_only=True)
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
            source=self.source,
            documents=self.documents + other.documents,
            text_bytes=self.text_bytes + other.text_bytes,
            characters=self.characters + other.characters,
            words=self.words + other.words,
            tokens=self.tokens + other.tokens,
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
        count = _count(source, texts, tokenizer)
        sources[source] = sources[source] + count if source in sources else count
    total = Fertility(source="all", documents=0, text_bytes=0, characters=0, words=0, tokens=0)
    for counts in sources.values():
        total = total + counts
    return (*(sources[name] for name in sorted(sources)), total)


def _count(source: str, texts: pa.Array, tokenizer: TextTokenizer) -> Fertility:
    tokens = len(tokenize_array(texts, tokenizer).values)
    strings = texts.to_pylist()
    return Fertility(
        source=source,
        documents=len(strings),
        text_bytes=sum(len(text.encode()) for text in strings),
        characters=sum(map(len, strings)),
        words=sum(len(text.split()) for text in strings),
        tokens=tokens,
    )
