"""How much host memory can be had without swapping: of the system, and of the container."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Files:
    """Where a version of control groups tells of memory; `idle` is a line of memory.stat, in bytes
    of files that can be read again."""

    base: str
    limit: str
    used: str
    idle: str


_V2 = _Files("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Files(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def measure_available(root: Path = Path("/")) -> int | None:
    """Bytes; None where the system does not say. `root` has proc and sys.

    The least of MemAvailable (proc_meminfo(5)) and of what every control group of this process
    leaves: limit - used + files that can be dropped (kernel documentation, cgroup-v2 and v1
    memory).
    """
    meminfo = _table(root / "proc/meminfo")
    free = [meminfo["MemAvailable"] * 1024] if "MemAvailable" in meminfo else []
    free += _left_by_groups(root)
    return max(0, min(free)) if free else None


def _left_by_groups(root: Path) -> Iterator[int]:
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _V1 if controllers else _V2
        base = root / files.base
        group = base / name.strip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(base):
                yield from _left_by(directory, files)


def _left_by(group: Path, files: _Files) -> Iterator[int]:
    limit, used = (group / name for name in (files.limit, files.used))
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        idle = _table(group / "memory.stat").get(files.idle, 0)
        yield int(limit.read_text()) - int(used.read_text()) + idle


def _table(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    lines = file.read_text().splitlines() if file.is_file() else []
    words = [line.replace(":", " ").split() for line in lines]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
