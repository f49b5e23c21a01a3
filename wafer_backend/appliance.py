"""The names of `cerebras.appliance` that scripts import; there is no appliance behind them.

Its modules of loggers, sizes, files, storage and clients are all this one (`utils.module_names`),
its errors are in `errors`, its debug settings in `backends.debug_args`.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pipeline.core.words import format_bytes
from wafer_backend import errors as errors
from wafer_backend.backends import debug_args
from wafer_backend.errors import CheckpointError

DEFAULT_COMPILE_DIR = "./cached_compile"
appliance_environ = os.environ
"""The environment of the processes of a cluster, which is that of this process."""

_itself = sys.modules[__name__]
classes = client = cluster = environment = file = _itself
log = storage = units = utils = _itself
ini = run_utils = debug_args

Class = TypeVar("Class", bound=type)

TRACE, VERBOSE = 5, 15
for _level, _name in ((TRACE, "TRACE"), (VERBOSE, "VERBOSE")):
    logging.addLevelName(_level, _name)

logger = logging.getLogger("cerebras.appliance")
wsc_logger = logging.getLogger("cerebras.wsc")
"""Of the servers of a cluster, which are in this process and log elsewhere."""


class ClassLogger:
    """A class with a logger of its own name, `self.logger`."""

    _logger_name: str | None = None

    @property
    def logger(self) -> logging.Logger:
        """The logger of the class."""
        return logging.getLogger(self._logger_name or type(self).__name__)


def named_class_logger(name: str | Class) -> Class | Callable[[Class], Class]:
    """Decorate a ClassLogger: its logger has this name; without a name, that of the class."""
    if isinstance(name, type):
        return _name_class(name, name.__name__)
    return lambda kind: _name_class(kind, name)


def _name_class(kind: Class, name: str) -> Class:
    kind._logger_name = name  # type: ignore[attr-defined]
    return kind


def get_level_name(level: str | int) -> int:
    """The number of a level by name, in any case. Raises ValueError for an unknown name.

    >>> get_level_name("info"), get_level_name("trace")
    (20, 5)
    """
    if isinstance(level, int):
        return level
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise ValueError(f"unknown level {level!r}; expected one of {', '.join(levels)}")
    return levels[level.upper()]


def collect_wsc_log_settings() -> dict[str, int]:
    """The levels that are set for servers of a cluster, by logger."""
    loggers = logging.root.manager.loggerDict
    return {
        name: known.level
        for name, known in loggers.items()
        if name.startswith(wsc_logger.name) and isinstance(known, logging.Logger) and known.level
    }


def retrieve_all_subclasses(
    kind: type, condition: Callable[[type], bool] | None = None
) -> list[type]:
    """Subclasses at every depth, each once, in the order of their making; those that `condition`
    takes.

    >>> [found.__name__ for found in retrieve_all_subclasses(int)][:1]
    ['bool']
    """
    found: dict[type, None] = {}
    child: type
    for child in kind.__subclasses__():
        found[child] = None
        found.update(dict.fromkeys(retrieve_all_subclasses(child)))
    return [child for child in found if condition is None or condition(child)]


def create_symlink(link: str | Path, target: str | Path, target_is_directory: bool = False) -> None:
    """Make `link` point to `target`; an earlier link of that name goes."""
    if os.path.islink(link):
        os.unlink(link)
    os.symlink(target, link, target_is_directory=target_is_directory)


_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def bytes_to_human(size: float) -> str:
    """A size with its unit."""
    return format_bytes(size)


def convert_byte_unit(
    value: float,
    target_unit: str,
    src_unit: str = "B",
    precision: int | None = None,
) -> float:
    """A size in another unit: B, KB, MB, ... are powers of 1000, KiB, MiB, ... of 1024.

    Raises ValueError for an unknown unit.

    >>> convert_byte_unit(2, "B", src_unit="KiB"), convert_byte_unit(3_000_000, "MB")
    (2048, 3)
    """
    size = value * _factor(src_unit)
    factor = _factor(target_unit)
    converted = size // factor if size % factor == 0 else size / factor
    return converted if precision is None else round(converted, precision)


def _factor(unit: str) -> int:
    letters = unit.strip().lower().removesuffix("b")
    base: Literal[1000, 1024] = 1024 if letters.endswith("i") else 1000
    if letters.removesuffix("i") not in _EXPONENTS:
        raise ValueError(f"unknown unit {unit!r}; expected B, KB, KiB, MB, MiB, GB, ...")
    return int(base ** _EXPONENTS[letters.removesuffix("i")])


class _Local:
    """A local file."""

    def __init__(self, path: str | Path) -> None:
        if not self.is_valid_path(path):
            raise CheckpointError(
                f"{path}: only local files are supported; copy the file and use its path"
            )
        self.path = Path(path)

    @classmethod
    def is_valid_path(cls, path: str | Path) -> bool:
        """Whether it is the path of a local file."""
        return "://" not in str(path)

    @classmethod
    def path_exists(cls, path: str | Path) -> bool:
        """Whether there is something at a path."""
        return os.path.exists(path)


class StorageReader(_Local):
    """Reads checkpoints."""

    @classmethod
    def get_type(cls, path: str | Path) -> type["H5Reader"]:
        """The reader for a path."""
        return H5Reader

    @property
    def fstat(self) -> os.stat_result:
        """Size and times of the file."""
        return os.stat(self.path)


class H5Reader(StorageReader):
    """Reads `.mdl` files."""


class StorageWriter(_Local):
    """Writes checkpoints."""


class H5Writer(StorageWriter):
    """Writes `.mdl` files."""


class StorageDeleter(_Local):
    """Deletes checkpoints."""

    @classmethod
    def get(cls, path: str | Path) -> "StorageDeleter":
        """The deleter for a path."""
        return cls(path)

    def delete(self) -> None:
        """Remove the file."""
        os.unlink(self.path)


class _S3(_Local):
    """An address of S3, which this package neither reads nor writes."""

    def __init__(self, path: str | Path) -> None:
        raise CheckpointError(f"{path}: S3 is not supported; copy the file and use its path")

    @classmethod
    def is_valid_path(cls, path: str | Path) -> bool:
        """Whether it is an address of S3."""
        return str(path).startswith("s3://")

    @classmethod
    def path_exists(cls, path: str | Path) -> bool:
        """Raises CheckpointError for an address of S3; no local file is one."""
        if cls.is_valid_path(path):
            cls(path)
        return False


class S3Reader(_S3):
    """Refused."""


class S3Writer(_S3):
    """Refused."""


class S3Deleter(_S3):
    """Refused."""


class TelemetryClient:
    """Takes metrics and drops them: no server collects telemetry."""

    def __init__(
        self, mgmt_client: Any, max_buffer_size: int = 128, max_buffer_seconds: float = 150
    ) -> None:
        self._mgmt_client = mgmt_client

    def push(self, metrics: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        """Drop metrics."""

    def flush(self) -> None:
        """Nothing is kept."""

    def __enter__(self) -> "TelemetryClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
