"""What a path or URL of the command line or of a config names: a place on this machine, or one in a
bucket, which stands for the directory that mirrors it."""

import contextlib
import os
import re
from pathlib import Path

from pipeline.core.bucket import EXTRAS
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.mirror.listing import open_mirror
from pipeline.core.mirror.paths import is_stored, mirror_path

BUCKETS = tuple(EXTRAS)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")


def check_local(path: Path) -> Path:
    """The path. Raises ConfigError for a URL, which `Path` turns into a directory such as `s3:`,
    and for a name that is not UTF-8."""
    url = _URL.match(str(path))
    if url:
        shown = f"{url[1]}://{escape_text(str(path)[url.end() :].partition('?')[0])}"
        raise ConfigError(f"{shown}: a URL; expected a path on this machine")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise ConfigError(f"{shown}: the name is not UTF-8; choose another one") from None
    return path


def open_place(path: Path) -> Path:
    """The directory on this machine behind a path of the command line: the path itself, or, for a
    URL of a bucket, the directory that mirrors it. Raises ConfigError for anything else."""
    url = _URL.match(str(path))
    if url is None or url[1] not in BUCKETS:
        return check_local(path)
    root = mirror_path(url[1], str(path)[url.end() :])
    open_mirror(root)
    return root


def is_in_bucket(url: str, name: str) -> bool:
    """Whether it is the URL of a directory in a bucket that holds a file of this name."""
    match = _URL.match(url)
    if match is None or match[1] not in BUCKETS:
        return False
    with contextlib.suppress(ConfigError):  # no directory, or its files are read in another way
        return is_stored(mirror_path(match[1], url[match.end() :]) / name)
    return False


def open_below(base: Path, path: str) -> Path:
    """The directory that a config names: a path from `base` on, or as for `open_place`."""
    return open_place(Path(path) if _URL.match(path) else base / path)
