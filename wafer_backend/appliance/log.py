"""Loggers by class, and levels by name."""

import logging
from collections.abc import Callable
from typing import TypeVar

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
