"""The tables of the installed ftfy, built once per machine and read from the user's cache.

They are kept in cleaning/ of $WAFERMILL_CACHE or ~/.cache/wafermill, in a file named after a digest
of everything that they depend on: this package, ftfy's version and sources, Python's Unicode data.
The file begins with the hash of the rest; one that is damaged is written anew. Where the cache
cannot be written, every process builds its own.
"""

import contextlib
import hashlib
import io
import unicodedata
from functools import cache
from pathlib import Path

import ftfy
import numpy as np

from dedup.compiled import source_digest
from dedup.user_cache import user_cache
from pipeline.cleaning.errors import UnprovenError
from pipeline.cleaning.tables import Tables, build
from pipeline.core import storage
from pipeline.core.errors import ResourceError

_HASH_DIGITS = 32


@cache
def tables_or_reason() -> Tables | str:
    """The tables, or why the installed ftfy has to do all the work itself."""
    path = table_file()
    tables = _read(path) if path else None
    if tables is None:
        try:
            tables = build()
        except UnprovenError as error:
            return str(error)
        if path:
            _write(path, tables)
    return tables


def table_file() -> Path | None:
    """Where the tables for exactly this ftfy, Python and package are kept; None for a user without
    a home directory."""
    digest = hashlib.sha256(source_digest(Path(__file__).parent).encode())
    digest.update(f"ftfy {ftfy.__version__} unicode {unicodedata.unidata_version}".encode())
    for source in sorted(Path(ftfy.__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    root = user_cache()
    return root and root / "cleaning" / f"{digest.hexdigest()[:16]}.npz"


def _write(path: Path, tables: Tables) -> None:
    file = io.BytesIO()
    np.savez(file, **tables._asdict())
    content = file.getvalue()
    with contextlib.suppress(ResourceError):  # the next process builds its own
        storage.publish(path, [storage.hash_bytes(content).encode(), content])


def _read(path: Path) -> Tables | None:
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, content = stored[:_HASH_DIGITS], stored[_HASH_DIGITS:]
    if storage.hash_bytes(content).encode() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return Tables(arrays["classes"], arrays["rows"])
