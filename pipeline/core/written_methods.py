"""The methods that `dataclasses` writes for a class, compiled once and kept in the user's cache.

For each frozen dataclass Python compiles the texts of six small methods, in every process again:
0.16 s for the 350 classes of `prep run`. The code that is kept is found by the whole text that it
was compiled from, so it is that of exactly this text, whatever has changed since.
"""

import atexit
import dataclasses
import functools
import marshal
from hashlib import blake2b
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any

from dedup.user_cache import keep_cached, read_cached

_FOLDER, _NAME = "methods", MAGIC_NUMBER.hex()
"""The number is that of the format of Python's byte code."""
_DIGEST_BYTES = 16
_MOST = 5_000
"""Codes that are kept, 4 MB; all commands need 4,000. Where there would be more, those of this
process only."""


class _WrittenMethods:
    """Runs texts in the place of `exec`, each with the code that an earlier process compiled."""

    def __init__(self) -> None:
        self._kept = _read()
        self._new: dict[bytes, bytes] = {}

    def execute(self, text: Any, *names: Any) -> None:
        """As `exec`."""
        code = self._find_code(text) if isinstance(text, str) else text
        exec(code, *names)  # noqa: S102 - what `dataclasses` would execute

    def _find_code(self, text: str) -> CodeType:
        digest = blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        kept = self._kept.get(digest)
        if kept is not None:
            return marshal.loads(kept)  # type: ignore[no-any-return]
        code = compile(text, "<string>", "exec", dont_inherit=True)
        self._kept[digest] = self._new[digest] = marshal.dumps(code)
        return code

    def keep(self) -> None:
        """Add what this process compiled to what is kept."""
        if self._new:
            kept = _read() | self._new
            keep_cached(marshal.dumps(kept if len(kept) <= _MOST else self._new), _FOLDER, _NAME)


def _read() -> dict[bytes, bytes]:
    data = read_cached(_FOLDER, _NAME)
    return {} if data is None else marshal.loads(data)


@functools.cache
def reuse_written_methods() -> None:
    """From now on the methods of new dataclasses are taken from the user's cache, and those that it
    lacks are added when the process ends."""
    methods = _WrittenMethods()
    vars(dataclasses)["exec"] = methods.execute
    atexit.register(methods.keep)
