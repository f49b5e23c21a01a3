"""The lease of a run directory in a bucket, and what is written under it: one writer, kept by a
heartbeat, told apart by a token.

The lease is an object. Its holder replaces it every few seconds, each time only if nobody else has;
whoever takes it over when the holder has been silent raises its token by one. Nothing is written
for a holder that could not renew its lease in time, so a process that was stopped for long and
wakes up leaves the run alone; and workers look at the token before they commit what they made.
"""

import contextlib
import functools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import xxhash

from pipeline.core.bucket import Bucket, ConflictError, StoredObject, Version, ask_often
from pipeline.core.errors import PrepError, ResourceError, escape_text
from pipeline.core.mirror.absent import make_time, temp_of
from pipeline.core.mirror.listing import open_mirror, seen
from pipeline.core.mirror.paths import COMMITTED, LEASE, PLACE, locate, mirrors_top, require_place

SECONDS = 60.0
"""For how long a lease is good after it was renewed."""
_BEATS = 4
"""Attempts to renew it in that time."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, as the time of everybody else does."""

_leases: dict[str, "Lease"] = {}
"""Those that this process holds, by local path."""


@dataclass(frozen=True)
class LeaseState:
    """What a lease says: its `holder`, in words ("" when it was given back); `place`, which no two
    holders share that may live at once; how many seconds it is good for; its `token`, one higher
    for each holder; and `nonce`, which makes each state of it differ."""

    holder: str
    place: str
    seconds: float
    token: int
    nonce: str

    def encode(self) -> bytes:
        """As the bytes of the object."""
        return json.dumps(asdict(self)).encode()


class Lease:
    """The lease of one run directory, held by this process."""

    def __init__(
        self, bucket: Bucket, key: str, claim: LeaseState, version: Version, began: float
    ) -> None:
        self.claim = claim
        self._bucket, self._key, self._version = bucket, key, version
        self._renewed = began
        self._lost_to = ""
        self._over = threading.Event()

    def check(self) -> None:
        """Raise ResourceError when the lease is lost, or may be."""
        url = f"{self._bucket.scheme}://{self._bucket.name}/{self._key.rpartition('/')[0]}"
        if self._lost_to:
            raise ResourceError(
                f"{url}: now in use by {self._lost_to}; this process had not renewed its lease in "
                "time, and has stopped writing"
            )
        if _now() - self._renewed > self.claim.seconds:
            raise ResourceError(
                f"{url}: the store did not answer for {self.claim.seconds:g} s, so that another "
                "process may have taken over; run the same command again, finished work is kept"
            )

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Renew the lease again and again within the block, and give it back after it."""
        thread = threading.Thread(target=self._beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            with contextlib.suppress(PrepError, ConflictError, FileNotFoundError):
                self.check()
                self._replace(replace(self.claim, holder=""))

    def _beat(self) -> None:
        while not self._over.wait(self.claim.seconds / _BEATS) and not self._lost_to:
            with contextlib.suppress(PrepError):
                began = _now()
                try:
                    self._replace(replace(self.claim, nonce=secrets.token_hex(8)))
                    self._renewed = began
                except ConflictError:
                    there = read_claim(self._bucket, self._key)
                    self._lost_to = there[0].holder if there else ""
                    self._lost_to = self._lost_to or "another process"

    def _replace(self, claim: LeaseState) -> None:
        self._version = _put(self._bucket, self._key, claim, self._version)


def take_lease(bucket: Bucket, key: str, holder: str, place: str) -> Lease:
    """Take the lease at `key`. One whose holder was in the same `place` is free, since only one
    process may be there; that of another holder is once it was not renewed for its time.

    Raises ResourceError naming the holder.
    """
    url = f"{bucket.scheme}://{bucket.name}/{key.rpartition('/')[0]}"
    there = read_claim(bucket, key)
    token = 1
    replaces: Version | str = "none"
    if there is not None:
        claim, stored = there
        if claim.holder and claim.place != place and not _is_silent(bucket, key, claim, stored):
            raise ResourceError(f"{url}: in use by {claim.holder}; wait for it or stop it")
        token, replaces = claim.token + 1, stored.version
    own = LeaseState(holder, place, SECONDS, token, secrets.token_hex(8))
    began = _now()
    try:
        return Lease(bucket, key, own, _put(bucket, key, own, replaces), began)
    except ConflictError as error:
        there = read_claim(bucket, key)
        who = there[0].holder if there else ""
        raise ResourceError(
            f"{url}: in use by {who or 'another process'}; wait for it or stop it"
        ) from error


def read_claim(bucket: Bucket, key: str) -> tuple[LeaseState, StoredObject] | None:
    """What the lease says, and its state; None if there is none. Raises ResourceError for what is
    no lease."""
    try:
        data, stored = bucket.read(key)
    except FileNotFoundError:
        return None
    try:
        return LeaseState(**json.loads(data)), stored
    except (ValueError, TypeError) as error:
        raise ResourceError(
            f"{bucket.scheme}://{bucket.name}/{key}: not a lease "
            f"({escape_text(str(error))}); delete it if no process uses this directory"
        ) from error


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def is_fresh(claim: LeaseState, stored: StoredObject) -> bool:
    """Whether a lease is held, by this machine's clock."""
    return bool(claim.holder) and time.time() - stored.modified < claim.seconds


def _is_silent(bucket: Bucket, key: str, claim: LeaseState, stored: StoredObject) -> bool:
    """Whether a lease was not renewed for its time: by this machine's clock, which may be wrong,
    and then by watching it for as long."""
    if is_fresh(claim, stored):
        return False
    time.sleep(claim.seconds)
    there = read_claim(bucket, key)
    return there is not None and there[1].version == stored.version


def _put(bucket: Bucket, key: str, claim: LeaseState, replaces: Version | str) -> Version:
    data = claim.encode()
    return bucket.put(key, data, xxhash.xxh3_128_hexdigest(data), replaces)


@contextlib.contextmanager
def hold_lease(root: Path, holder: str) -> Iterator[None]:
    """Hold the lease of a mirrored directory within the block, and know what is in the bucket. The
    caller holds its lock on this machine."""
    bucket, prefix = require_place(root)
    key = f"{prefix}/{LEASE}"
    name = os.path.abspath(root)
    lease = take_lease(bucket, key, holder, _this_place())
    with lease.beating():
        _leases[name] = lease
        try:
            open_mirror(root)
            yield
        finally:
            del _leases[name]


def check_lease(path: Path) -> None:
    """Raise ResourceError when the lease that this process held around `path` is lost."""
    for root, lease in _leases.items() if _leases else ():
        if os.path.abspath(path).startswith(f"{root}/"):
            lease.check()


def lease_token(root: Path) -> int:
    """The token of the lease that this process holds of `root`; 0 if it is not mirrored."""
    lease = _leases.get(os.path.abspath(root))
    return lease.claim.token if lease else 0


def check_token(root: Path, token: int) -> None:
    """For workers: raise ResourceError when the lease of `root` has another holder by now."""
    if not token:
        return
    bucket, prefix = require_place(root)
    there = ask_often(lambda: read_claim(bucket, f"{prefix}/{LEASE}"))
    if there is None or there[0].token != token:
        raise ResourceError(f"{root}: now in use by another process; this one has stopped")


def read_holder(root: Path) -> tuple[str, bool]:
    """Who has the lease of a mirrored directory, or had it last, and whether it is held now."""
    bucket, prefix = require_place(root)
    there = read_claim(bucket, f"{prefix}/{LEASE}")
    return ("", False) if there is None else (there[0].holder, is_fresh(*there))


@functools.cache
def _this_place() -> str:
    """A name of this machine, since its start, and of the cache: what is locked here is locked for
    all who share that name."""
    top = Path(mirrors_top() or "")
    top.mkdir(parents=True, exist_ok=True)
    own = top / PLACE
    if not own.exists():
        temp = temp_of(own)
        temp.write_text(secrets.token_hex(16), encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(temp, own)
        temp.unlink()
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    name = f"{own.read_text(encoding='ascii')} {socket.gethostname()} {boot}"
    return xxhash.xxh3_128_hexdigest(name.encode())


def upload(path: Path, temp: Path, digest: str) -> None:
    """Put the bytes of `temp` into the bucket as what `path` mirrors, if it does. Raises
    ResourceError when the lease is lost, and when another process changed what it replaces."""
    place = locate(path)
    if place is None:
        return
    bucket, key = place
    check_lease(path)
    is_committed = path.name in COMMITTED
    replaces = seen.get(str(path), "any") if is_committed else "any"
    data = temp.read_bytes() if is_committed else temp
    try:
        version = bucket.put(key, data, digest, replaces)
    except ConflictError as error:
        raise ResourceError(
            f"{path}: another process changed it meanwhile; run the same command again, finished "
            "work is kept"
        ) from error
    if is_committed and str(path) in seen:
        seen[str(path)] = version
    stamp = make_time(version.get("e_tag", ""), time.time())
    os.utime(temp, ns=(time.time_ns(), stamp))


def delete(path: Path) -> None:
    """Delete the object that `path` mirrors, if it does."""
    place = locate(path)
    if place is None:
        return
    bucket, key = place
    check_lease(path)
    bucket.delete([key])
    if str(path) in seen:
        seen[str(path)] = "none"


def delete_tree(directory: Path) -> None:
    """Delete all objects below what `directory` mirrors, if it does."""
    place = locate(directory)
    if place is None:
        return
    bucket, key = place
    keys = [stored.key for stored in bucket.list_objects(f"{key}/")]
    check_lease(directory)
    bucket.delete(keys)
