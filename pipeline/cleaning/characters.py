"""All of Unicode, as one string."""

from functools import cache

import numpy as np

ALL = 0x110000
"""Code points, surrogates included."""


@cache
def every_character() -> str:
    """All code points in order, so that an index is a code point."""
    return np.arange(ALL, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
