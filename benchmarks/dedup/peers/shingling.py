"""The shingles that every peer gets: normalised as SlimPajama does, in plain Python.

Slices of a string in place of SlimPajama's `nltk.ngrams`, which is slower: the peers run with the
faster of the two. Runs in any interpreter.
"""

import re
import string

UNITS = {"char13": 13, "word5": 5}
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACE = re.compile(r"\s+")


def normalize(text: str) -> str:
    """Lower-cased, without ASCII punctuation, one blank for every run of white space, stripped."""
    return _SPACE.sub(" ", text.lower().translate(_PUNCTUATION).strip())


def shingles(text: str, unit: str) -> list[str]:
    """Every shingle in order: 13 characters (`char13`) or 5 words joined by blanks (`word5`)."""
    clean, size = normalize(text), UNITS[unit]
    if unit == "char13":
        return [clean[start : start + size] for start in range(len(clean) - size + 1)]
    words = clean.split(" ")
    return [" ".join(words[start : start + size]) for start in range(len(words) - size + 1)]


def shingle_set(text: str, unit: str) -> set[str]:
    """The set of all shingles."""
    return set(shingles(text, unit))
