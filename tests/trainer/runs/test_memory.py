"""Memory that can be had, of systems with and without control groups of either version."""

from pathlib import Path

import pytest

from trainer.runs import checkpoint

MIB = 1 << 20
PLAIN = {"proc/meminfo": "MemTotal: 8192 kB\nMemFree: 10 kB\nMemAvailable: 4096 kB\n"}
V2 = {
    "proc/self/cgroup": "0::/jobs/one\n",
    "sys/fs/cgroup/jobs/memory.max": "max\n",
    "sys/fs/cgroup/jobs/memory.current": f"{MIB}\n",
    "sys/fs/cgroup/jobs/one/memory.max": f"{3 * MIB}\n",
    "sys/fs/cgroup/jobs/one/memory.current": f"{2 * MIB}\n",
    "sys/fs/cgroup/jobs/one/memory.stat": f"anon 7\ninactive_file {MIB // 2}\n",
}
V2_IN_A_CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": f"{3 * MIB}\n",
    "sys/fs/cgroup/memory.current": f"{MIB}\n",
}
V1 = {
    "proc/self/cgroup": "5:devices:/\n4:memory:/docker/ab\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{MIB}\n",
    "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": f"{2 * MIB}\n",
    "sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes": f"{MIB}\n",
}
PARENT = V2 | {"sys/fs/cgroup/jobs/memory.max": f"{2 * MIB}\n"}
USED_UP = V2 | {"sys/fs/cgroup/jobs/one/memory.max": f"{MIB}\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (PLAIN, 4 * MIB),
        (PLAIN | V2, MIB + MIB // 2),
        (PLAIN | V2_IN_A_CONTAINER, 2 * MIB),
        (PLAIN | V1, MIB),
        (PLAIN | PARENT, MIB),
        (PLAIN | USED_UP, 0),
    ],
)
def test_the_least_that_is_left(files: dict[str, str], expected: int | None, tmp_path: Path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert checkpoint.measure_available_memory(tmp_path) == expected


def test_this_system_has_some():
    found = checkpoint.measure_available_memory()
    assert found is None or found > MIB
