"""The text normalisation of SlimPajama: what its length filter and its shingles see.

Source: Model Zoo `slimpajama/preprocessing/filter.py` and `dedup/to_hash.py` (release of 2023-06):
`lower()`, delete `string.punctuation` (the 32 ASCII marks), strip, collapse white space to one
blank.
"""

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACES = re.compile(r"\s+")


def normalize(text: str) -> str:
    """Lower-case, drop ASCII punctuation, collapse white space.

    >>> normalize("  Hello,\\n\\tWorld! ")
    'hello world'
    """
    return _SPACES.sub(" ", text.lower().translate(_PUNCTUATION).strip())


def is_short(text: str, min_length: int) -> bool:
    """SlimPajama's low-length rule: fewer than `min_length` characters after `normalize`.

    What the beginning of a text leaves, the whole text leaves at least, so a long one is not read
    to its end.

    >>> is_short("a" * 199, 200), is_short("a" * 200, 200)
    (True, False)
    """
    beginning = text[: 4 * min_length]
    return len(normalize(beginning)) < min_length and len(normalize(text)) < min_length
