"""Which object of a bucket a local path mirrors, and what its store says of it.

`s3://BUCKET/KEY` is the path `buckets/s3/BUCKET/KEY` in the user's cache, so every process knows
from a path alone whether it is mirrored, and what.
"""

import contextlib
import functools
import os
from collections.abc import Iterable
from pathlib import Path

import xxhash

from pipeline.core.bucket import EXTRAS, Bucket, StoredObject, ask_often
from pipeline.core.errors import ConfigError, IntegrityError

LEASE = ".lock"
PLACE = ".id"
TEMP_MARK = ".tmp-"
COMMITTED = ("manifest.json", "events.jsonl", "events.head", "reviews.jsonl", "holds.jsonl")
"""Files that are only replaced in the state in which this process has seen them."""


def mirrors_top() -> str | None:
    """The directory of all mirrors, with a slash at its end."""
    from dedup.user_cache import user_cache  # not for help

    cache = user_cache()
    return None if cache is None else f"{_resolve(cache)}/buckets/"


@functools.cache
def _resolve(cache: Path) -> str:
    """Its one name, which paths have that commands resolved."""
    return os.path.realpath(cache)


def locate(path: Path) -> tuple[Bucket, str] | None:
    """The bucket and key that a local path mirrors; None for a path that mirrors nothing."""
    text = str(path)
    if text.startswith("/") and "/buckets/" not in text:
        return None
    text = os.path.abspath(text)
    if "/buckets/" not in text or (top := mirrors_top()) is None or not text.startswith(top):
        return None
    scheme, name, *parts = text[len(top) :].split("/")
    return _bucket(scheme, name), "/".join(parts)


def require_place(root: Path) -> tuple[Bucket, str]:
    """The bucket and key of a path that mirrors something."""
    place = locate(root)
    assert place is not None, root
    return place


@functools.cache
def _bucket(scheme: str, name: str) -> Bucket:
    return Bucket(scheme, name)


def mirror_path(scheme: str, place: str) -> Path:
    """The local path that mirrors BUCKET/KEY. Raises ConfigError."""
    top = mirrors_top()
    if "@" in place.partition("/")[0]:
        raise ConfigError(
            f"{scheme}://…@{place.partition('@')[2]}: no credentials in a URL; set them in the "
            "environment, or where the store's own tools look"
        )
    url = f"{scheme}://{place}"
    if scheme not in EXTRAS:
        raise ConfigError(f"{url}: expected a path on this machine, or a URL of s3:// or gs://")
    if top is None:
        raise ConfigError(f"{url}: needs a cache on this machine; set WAFERMILL_CACHE to its path")
    parts = place.strip("/").split("/")
    if len(parts) < 2 or set(parts) & {"", ".", ".."}:
        raise ConfigError(f"{url}: expected {scheme}://BUCKET/DIRECTORY")
    return Path(top, scheme, *parts)


def name_urls(text: str) -> str:
    """A message, with URLs in place of paths of mirrors."""
    top = mirrors_top()
    for scheme in EXTRAS if top is not None and top in text else ():
        text = text.replace(f"{top}{scheme}/", f"{scheme}://")
    return text


def is_stored(path: Path) -> bool:
    """Whether there is an object that `path` mirrors."""
    bucket, key = require_place(path)
    return bucket.look_up(key) is not None


def check_stored(path: Path, expected: str) -> None:
    """Raise IntegrityError unless the object that `path` mirrors says that this is the hash of its
    bytes, which are read only if another program wrote it."""
    bucket, key = require_place(path)
    there = ask_often(lambda: bucket.look_up(key))
    if there is None:
        raise _missing(path)
    actual = there[1] or hash_stored(path)
    if actual != expected:
        raise IntegrityError(
            f"{path}: changed: hash {actual}; expected a file with hash {expected}"
        )


def hash_stored(path: Path) -> str:
    """xxh3-128 of the bytes of the object that `path` mirrors, of which none are kept here. Raises
    IntegrityError if there is none."""
    bucket, key = require_place(path)
    digest = xxhash.xxh3_128()

    def read(chunks: Iterable[memoryview]) -> None:
        digest.reset()
        for chunk in chunks:
            digest.update(chunk)

    def ask() -> StoredObject | None:
        with contextlib.suppress(FileNotFoundError):
            return bucket.stream(key, read)
        return None

    if ask_often(ask) is None:
        raise _missing(path)
    return digest.hexdigest()


def _missing(path: Path) -> IntegrityError:
    return IntegrityError(f"{path}: missing; to rebuild it, run again the command that made it")
