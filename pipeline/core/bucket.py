"""Objects in a bucket of S3 or Google Cloud Storage: conditional writes, bounded retries.

Every request may be lost, answered twice or answered late, so it is repeated a few times with
growing pauses. An object written here states the hash of its bytes: a conditional write whose
answer was lost is recognised by it when the repetition is refused, and a read that was cut short or
damaged on the way shows.

Credentials come from where the store's own tools look: the environment, ~/.aws, the machine.
"""

import contextlib
import functools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from pipeline.core import failpoint
from pipeline.core.errors import ConfigError, ResourceError, escape_text

EXTRAS = {"s3": "s3", "gs": "gcs"}
"""Scheme of a URL -> the extra of this package that it needs."""
_HASH = "wafermill-hash"
_ATTEMPTS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 8.0
_PART_BYTES = 64 << 20
"""An object larger than this is sent in parts, which appear at once when the last one is there."""
_PARTS_AT_ONCE = 4
"""All of them are in memory."""
_LEAST_CHUNK = 4 << 20
_REQUEST_SECONDS = 120
_LATE = 5
"""Attempts to see an object that should be there."""
_KEYS_PER_DELETE = 1000

Answer = TypeVar("Answer")
Version = dict[str, str]
"""What a store calls this state of an object, for conditional writes."""


class ConflictError(Exception):
    """A conditional write was refused: the object is not as it was, or it is there already."""


class _DamagedError(Exception):
    """What arrived is not what was stored."""


@dataclass(frozen=True)
class StoredObject:
    """An object as a store lists it; `modified` in seconds since 1970."""

    key: str
    size: int
    modified: float
    version: Version

    @property
    def etag(self) -> str:
        """What tells its content from that of another state."""
        return self.version.get("e_tag", "")


@dataclass(frozen=True)
class Bucket:
    """One bucket. Raises ConfigError where it is not there or access is denied, and ResourceError
    when the store does not answer for about half a minute."""

    scheme: str
    name: str

    @functools.cached_property
    def _store(self) -> Any:
        options: dict[str, Any] = {
            "retry_config": {"max_retries": 0},
            "client_options": {"timeout": f"{_REQUEST_SECONDS}s", "allow_http": True},
        }
        try:
            from obstore.store import GCSStore, S3Store
        except ImportError as error:
            raise ConfigError(
                f"{self.scheme}://{self.name}: needs obstore; "
                f"pip install 'wafermill[{EXTRAS[self.scheme]}]'"
            ) from error
        if self.scheme == "gs":
            return GCSStore(self.name, **options)
        return S3Store(self.name, **options, **_find_credentials())

    def list_objects(self, prefix: str) -> list[StoredObject]:
        """All objects whose key begins with `prefix`, by key."""

        def ask() -> list[StoredObject]:
            return [_describe(m) for page in self._store.list(prefix) for m in page]

        return sorted(self._asking(prefix, ask), key=lambda stored: stored.key)

    def look_up(self, key: str) -> tuple[StoredObject, str] | None:
        """An object and the hash of its bytes ("" if another program wrote it); None for none."""

        def ask() -> tuple[StoredObject, str]:
            answer = self._store.get(key, options={"head": True})
            return _describe(answer.meta), answer.attributes.get(_HASH, "")

        with contextlib.suppress(FileNotFoundError):
            return self._asking(key, ask)
        return None

    def read(self, key: str) -> tuple[bytes, StoredObject]:
        """The bytes of an object. Raises FileNotFoundError."""

        def ask() -> tuple[bytes, StoredObject]:
            answer = self._store.get(key)
            data = bytes(answer.bytes())
            _check_whole(answer, len(data), xxhash.xxh3_128_hexdigest(data))
            return data, _describe(answer.meta)

        return self._asking(key, ask)

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of an object; whether they are undamaged is for the caller to check.
        Raises FileNotFoundError."""

        def ask() -> bytes:
            data = bytes(self._store.get_range(key, start=start, end=stop))
            if len(data) != stop - start:
                raise _DamagedError(f"{len(data):,} bytes arrived, expected {stop - start:,}")
            return data

        return self._asking(key, ask)

    def stream(self, key: str, accept: Callable[[Iterable[memoryview]], None]) -> StoredObject:
        """Give the bytes of an object to `accept` as they come; again from the first one when they
        are cut short. Raises FileNotFoundError."""

        def ask() -> StoredObject:
            answer = self._store.get(key)
            digest, size = xxhash.xxh3_128(), 0

            def chunks() -> Iterator[memoryview]:
                nonlocal size
                for chunk in answer.stream(min_chunk_size=_LEAST_CHUNK):
                    piece = memoryview(chunk)
                    digest.update(piece)
                    size += len(piece)
                    yield piece

            accept(chunks())
            _check_whole(answer, size, digest.hexdigest())
            return _describe(answer.meta)

        return self._asking(key, ask)

    def put(
        self, key: str, data: bytes | Path, digest: str, replaces: Version | str = "any"
    ) -> Version:
        """Write an object of this hash, from memory or from a file; returns its state.

        `replaces` is the state that it must be in, "none" if there must be none, or "any". Raises
        ConflictError; not when the object holds these very bytes already.
        """
        modes: dict[str, Any] = {"any": "overwrite", "none": "create"}
        mode = modes[replaces] if isinstance(replaces, str) else replaces

        def ask() -> Version:
            failpoint.hit("bucket.put.start")
            parts = {"chunk_size": _PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
            more = parts if mode == "overwrite" else {}
            answer = self._store.put(key, data, attributes={_HASH: digest}, mode=mode, **more)
            failpoint.hit("bucket.put.done")
            return _version(answer)

        try:
            return self._asking(key, ask)
        except ConflictError:
            there = ask_often(lambda: self.look_up(key))
            if there is None or there[1] != digest:
                raise
            return there[0].version

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there count as deleted."""
        left = list(keys)
        while left:
            failpoint.hit("bucket.delete")
            some, left = left[:_KEYS_PER_DELETE], left[_KEYS_PER_DELETE:]
            with contextlib.suppress(FileNotFoundError):
                self._asking(some[0], functools.partial(self._store.delete, some))

    def _asking(self, key: str, ask: Callable[[], Answer]) -> Answer:
        """The answer to a request, which is repeated while the store fails."""
        _ = self._store  # says what to install
        from obstore import exceptions

        refused = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        url = f"{self.scheme}://{self.name}/{key}"
        for attempt in range(_ATTEMPTS):
            try:
                return ask()
            except refused as error:
                raise ConflictError(url) from error
            except denied as error:
                raise ConfigError(
                    f"{url}: access denied ({_shorten(error)}); set credentials that may read and "
                    "write there in the environment, or where the store's own tools look"
                ) from error
            except (exceptions.BaseError, FileNotFoundError, _DamagedError) as error:
                if "NoSuchBucket" in str(error) or "bucket does not exist" in str(error):
                    raise ConfigError(
                        f"{url}: there is no bucket {self.name}; correct its name, or create it"
                    ) from error
                if isinstance(error, FileNotFoundError):
                    raise
                if attempt == _ATTEMPTS - 1:
                    raise ResourceError(
                        f"{url}: the store does not answer ({_shorten(error)}); run the same "
                        "command again, finished work is kept"
                    ) from error
                pause(attempt)
        raise AssertionError


def ask_often(ask: Callable[[], Answer | None]) -> Answer | None:
    """The answer to a request about an object that should be there: some stores are late."""
    for attempt in range(_LATE):
        answer = ask()
        if answer is not None or attempt == _LATE - 1:
            break
        pause(attempt)
    return answer


def pause(attempt: int) -> None:
    """Wait before the next attempt, each time longer, and not all processes at once."""
    time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1))


def _find_credentials() -> dict[str, Any]:
    """Of profiles and single sign-on, which boto3 reads; obstore itself reads the environment and
    asks the machine."""
    if "AWS_ACCESS_KEY_ID" in os.environ or os.environ.get("AWS_SKIP_SIGNATURE"):
        return {}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    return {"credential_provider": Boto3CredentialProvider(session)}


def _describe(meta: Any) -> StoredObject:
    return StoredObject(
        meta["path"], int(meta["size"]), meta["last_modified"].timestamp(), _version(meta)
    )


def _version(answer: Any) -> Version:
    return {name: answer[name] for name in ("e_tag", "version") if answer.get(name)}


def _check_whole(answer: Any, size: int, digest: str) -> None:
    expected = answer.attributes.get(_HASH, digest)
    if size != answer.meta["size"] or digest != expected:
        raise _DamagedError(
            f"{size:,} bytes with hash {digest} arrived, expected {answer.meta['size']:,} with "
            f"{expected}"
        )


def _shorten(error: BaseException) -> str:
    return escape_text(" ".join(str(error).split("Debug source")[0].split()), 300)
