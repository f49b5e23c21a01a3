"""What a power cut may leave of the files that a process wrote."""

import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass
class _Rename:
    target: Path
    before: bytes | None


class Disk:
    """Watches fsync and rename of this process; `lose` drops what was not made durable, and from
    then on nothing reaches the disk."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._lock = threading.Lock()
        self._synced: set[tuple[int, int, int]] = set()
        self._pending: list[_Rename] = []
        self._renamed: dict[Path, tuple[int, int, int]] = {}
        self._fsync, self._replace = os.fsync, os.replace
        os.fsync, os.replace = self.fsync, self.replace  # type: ignore[assignment]

    def fsync(self, handle: int) -> None:
        with self._lock:
            self._fsync(handle)
            name = _path(handle)
            if name.is_dir():
                self._pending = [r for r in self._pending if r.target.parent != name]
            else:
                self._synced.add(_stamp(os.fstat(handle)))

    def replace(self, source: str, name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        with self._lock:
            target = _path(dst_dir_fd) / name
            stamp = _stamp(os.stat(source, dir_fd=src_dir_fd))
            before = target.read_bytes() if target.exists() else None
            self._replace(source, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            self._pending.append(_Rename(target, before))
            self._renamed[target] = stamp

    def lose(self) -> None:
        self._lock.acquire()  # for good
        for target, stamp in self._renamed.items():
            is_lost = stamp not in self._synced
            if is_lost and target.exists() and _stamp(target.stat()) == stamp:
                os.truncate(target, self._rng.choice((0, stamp[1] // 2, stamp[1])))
        for rename in reversed(self._pending):
            if self._rng.random() < 0.5:
                continue
            if rename.before is None:
                rename.target.unlink(missing_ok=True)
            elif rename.target.parent.exists():  # records go with their directory
                rename.target.write_bytes(rename.before)


def _path(handle: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{handle}"))


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
