"""Invented books: words of a language that nobody speaks, as often as words of a real one."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

Book = Callable[..., str]


@cache
def _forms(count: int) -> list[str]:
    rng = np.random.default_rng(7)
    syllables = ["ba", "do", "fi", "gu", "ke", "lor", "mi", "na", "pra", "sel", "tu", "vo"]
    return ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(count)]


def invented(seed: int, words: int, vocabulary: int = 4000) -> str:
    """Sentences of so many words in all; other seeds share the vocabulary, hardly a phrase."""
    forms = _forms(vocabulary)
    weights = 1 / np.arange(1, vocabulary + 1)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(vocabulary, words, p=weights / weights.sum())
    ends = rng.random(words) < 0.07
    return " ".join(forms[n] + ("." if end else "") for n, end in zip(drawn, ends, strict=True))


@pytest.fixture(scope="session")
def book() -> Book:
    return invented
