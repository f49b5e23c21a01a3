"""Mounts that only this process and its children see; for forks of the tests, which are then root
there, whoever they are outside."""

import ctypes
import os
import subprocess
from pathlib import Path

NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000


def are_allowed() -> bool:
    """Whether this machine lets a process have them."""
    return subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0


def enter() -> None:
    """What `unshare --user --map-root-user --mount` does, for this process."""
    ids = {"uid": os.getuid(), "gid": os.getgid()}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_USER | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in ids.items():
        Path(f"/proc/self/{name}_map").write_text(f"0 {number} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
