"""Certificates that are made for one run: scheduler, workers and client show them to each other.

They are files that only their owner can read, below the run directory, which all machines see. Of a
run in a bucket they are in the user's cache instead: nothing of them goes to the bucket.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from dedup.user_cache import user_cache
from pipeline.core.directories import make_directory
from pipeline.core.mirror.paths import locate


def secret_directory(directory: Path) -> Path:
    """This directory, for what workers have to read in secret; another one if it is in a bucket."""
    cache = user_cache()
    if cache is None or locate(directory) is None:
        return directory
    return cache / "secrets" / xxhash.xxh3_128_hexdigest(bytes(directory))


def write_certificates(directory: Path) -> dict[str, str]:
    """Make a certificate and its key; the paths of `cert` and `key`."""
    from distributed.security import Security

    made = Security.temporary()
    make_directory(directory)
    directory.chmod(0o700)
    texts = {"cert": made.tls_ca_file, "key": made.tls_client_key}
    return {name: write_secret(directory / f"{name}.pem", text) for name, text in texts.items()}


def write_secret(path: Path, text: str) -> str:
    """Write a new file that only its owner can read; its path."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return str(path)


@contextlib.contextmanager
def certificates(directory: Path) -> Iterator[Any]:
    """New certificates; what is started meanwhile finds them in Dask's config."""
    import dask
    from distributed.security import Security

    pair = write_certificates(directory)
    roles = {f"distributed.comm.tls.{role}": pair for role in ("scheduler", "worker", "client")}
    settings = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": pair["cert"],
        **roles,
    }
    with dask.config.set(settings):
        yield Security()
