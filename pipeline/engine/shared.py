"""What a job is identified by, and how what many jobs have in common travels once.

A call to a worker is small whatever the number of shards: what all tasks of a stage read alike is
`Shared`, of which a call carries a path and a hash; a job that is large by itself is stored in the
same way.
"""

import dataclasses
import functools
import json
import pickle
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from pipeline.core import storage
from pipeline.core.hashes import hash_bytes, read_verified
from pipeline.core.manifest import Shard, fingerprint_of

LARGEST_JOB = 2048
"""Bytes of a pickled job that travel in the call itself."""
SUFFIX = ".shared"
_LEFT_OUT = ("location", "withheld")
_LOADED_AT_ONCE = 8
_PLAIN = frozenset({str, int, bool, type(None)})
_ENCODER = msgspec.json.Encoder(order="sorted")

Value = TypeVar("Value")


class Shared(Generic[Value]):
    """Plain data that many tasks read alike, such as all shards of an earlier stage.

    It counts for the fingerprint of each of them by its hash, which is computed once. Workers read
    it from a file, once per process while they need it.
    """

    def __init__(self, value: Value) -> None:
        self.value = value
        self._stored: tuple[Path, str] | None = None

    @functools.cached_property
    def identity(self) -> str:
        """Hash of the value as plain data."""
        return identify({"shared": self.value})

    def store_in(self, directory: Path) -> None:
        """Write the value to a file, by which it travels from now on. Raises ResourceError."""
        if self._stored and self._stored[0].parent == directory and self._stored[0].exists():
            return
        data = pickle.dumps(self.value, pickle.HIGHEST_PROTOCOL)
        digest = hash_bytes(data)
        path = directory / f"{digest}{SUFFIX}"
        storage.publish(path, data, durable=False)  # for as long as the run is at work
        self._stored = path, digest

    def __reduce__(self) -> tuple[Any, ...]:
        return (_load, self._stored) if self._stored else (Shared, (self.value,))


@functools.lru_cache(_LOADED_AT_ONCE)
def _load(path: Path, digest: str) -> Shared[Any]:
    data = read_verified(path, digest)
    loaded: Shared[Any] = Shared(pickle.loads(data))  # noqa: S301 - the hash came with the call
    loaded._stored = path, digest
    return loaded


def shorten_call(job: Any, directory: Path) -> Any:
    """The job as it travels in a call: as it is, or stored in `directory` because it is large. What
    it shares with others is stored there in any case. Raises ResourceError where a disk is full."""
    if isinstance(job, Shared):
        return job
    for shared in _find_shared(job):
        shared.store_in(directory)
    if len(pickle.dumps(job, pickle.HIGHEST_PROTOCOL)) <= LARGEST_JOB:
        return job
    whole = Shared(job)
    whole.store_in(directory)
    return whole


def _find_shared(job: Any) -> Iterator[Shared[Any]]:
    """All that a job shares with others, in the dataclasses that it consists of."""
    for value in vars(job).values() if is_dataclass(job) else ():
        if isinstance(value, Shared):
            yield value
        elif not isinstance(value, Shard):
            yield from _find_shared(value)


def identify(value: Mapping[str, Any]) -> str:
    """The `fingerprint_of` a job, and of what has jobs in it, without waiting for it: a run with
    nothing to do identifies every task."""
    data = _ENCODER.encode(_to_plain_data(value))
    try:
        return hash_bytes(msgspec.json.format(data, indent=1) + b"\n")
    except msgspec.DecodeError:  # NaN and infinities, which are no JSON
        return fingerprint_of(json.loads(data))


def _to_plain_data(value: Any) -> Any:
    """A job as plain data for hashing; shards count by their content, what is shared by its hash.

    Fields named `location` say where, not what, and `withheld` what must not be stored whatever is
    asked for; both are left out.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is Shard:
        return value.identity
    if kind is tuple or kind is list:
        return [_to_plain_data(v) for v in value]
    if (names := _field_names(kind)) is not None:
        return {name: _to_plain_data(getattr(value, name)) for name in names}
    if isinstance(value, Shared):
        return value.identity
    if isinstance(value, Mapping):
        return {str(k): _to_plain_data(v) for k, v in value.items() if k not in _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [_to_plain_data(v) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return msgspec.Raw(json.dumps(value).encode())  # msgspec writes 1e16 where json has 1e+16
    return value


@functools.cache
def _field_names(kind: Hashable) -> tuple[str, ...] | None:
    """The fields of a dataclass that count; None for another type."""
    if not is_dataclass(kind):
        return None
    return tuple(f.name for f in dataclasses.fields(kind) if f.name not in _LEFT_OUT)
