"""The functions of custom filters: where they are, the hash of their file, and loading them.

The bytes that are hashed are the bytes that run: a module is compiled from the file that was read,
so that neither a stale `.pyc` nor an import from before counts. In every process the same function
is loaded once.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.storage import hash_bytes, read_at_most

Function = Callable[..., Any]

_LARGEST_FILE = 16 << 20
_on_path: list[str] = []
_registered: dict[str, ModuleType] = {}


@dataclass(frozen=True)
class FunctionPlace:
    """Where a function is: the config key that names it, its name there, and its file; of a module
    its name, and the directory that counts as well as Python's path."""

    key: str
    given: str
    file: str
    module: str = ""
    directory: str = ""

    @property
    def shown(self) -> str:
        """Config key and function, as messages begin."""
        return f"{self.key}: {escape_text(self.given)}"


@dataclass(frozen=True)
class CustomFilter:
    """A function, the hash of its file, and what it is called with (as JSON): all that its verdicts
    depend on. `location` only says where it is."""

    name: str
    file_hash: str
    settings: str
    batch: bool
    location: FunctionPlace

    @property
    def rule(self) -> str:
        """The reason word of what it drops."""
        return f"custom_{self.name}"

    def describe(self) -> str:
        """One line: the function, its settings, and the file with its hash."""
        form = ", in batches" if self.batch else ""
        return f"{self.name} {self.settings}{form}: {self.location.file}, hash {self.file_hash}"


def read_source(place: FunctionPlace) -> bytes:
    """The bytes of a function's file. Raises ConfigError."""
    try:
        data = read_at_most(Path(place.file), _LARGEST_FILE)
    except OSError as error:
        raise ConfigError(
            f"{place.shown}: {place.file}: {error.strerror}; every worker must see this file"
        ) from error
    if data is None:
        raise ConfigError(
            f"{place.shown}: {place.file}: expected a file of at most {_LARGEST_FILE:,} bytes"
        )
    return data


def load_function(own: CustomFilter) -> Function:
    """The function of a filter. Raises ConfigError when its file changed since it was hashed, or
    does not run any more."""
    return getattr(load_module(own.location, own.file_hash), own.name)  # type: ignore[no-any-return]


def load_module(place: FunctionPlace, file_hash: str) -> ModuleType:
    """What the file of a function defines. Raises ConfigError naming the line that failed, and when
    the file does not have this hash."""
    try:
        return _module(place.file, place.module, place.directory, file_hash)
    except _ChangedFileError:
        raise ConfigError(
            f"{place.shown}: {place.file} changed while the run was under way; run the same "
            "command again"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{place.shown}: {place.file}: {error.strerror or error}; every worker must see this "
            "file"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{place.shown}: {describe_failure(error, place.file)}; the file must run by itself"
        ) from error


class _ChangedFileError(Exception):
    """The file is another one than was hashed."""


class _SourceLoader(SourceFileLoader):
    """Runs the bytes that were hashed, and no compiled file from before."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        """The code of these bytes."""
        return self.source_to_code(self._source, self.path)


@lru_cache(maxsize=64)
def _module(file: str, module: str, directory: str, file_hash: str) -> ModuleType:
    source = Path(file).read_bytes()
    if hash_bytes(source) != file_hash:
        raise _ChangedFileError
    name = module or f"wafermill_filter_{file_hash}"
    if directory:
        add_to_path(directory)
        if "." in name:
            importlib.import_module(name.rpartition(".")[0])
    loader = _SourceLoader(name, file, source)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    forget_module(name)
    if sys.modules.setdefault(name, made) is made:
        _registered[name] = made
    loader.exec_module(made)
    return made


def add_to_path(directory: str) -> None:
    """Let modules of a directory be imported, after all others; that of an earlier call no more."""
    if directory in _on_path or directory not in sys.path:
        for earlier in _on_path:
            if earlier in sys.path:
                sys.path.remove(earlier)
        _on_path[:] = [directory]
        sys.path.append(directory)
    importlib.invalidate_caches()


def forget_module(name: str) -> None:
    """Let a name mean the module on the path again, and none that was loaded here."""
    if name in _registered and sys.modules.get(name) is _registered.pop(name):
        del sys.modules[name]


def describe_failure(error: BaseException, file: str) -> str:
    """Where in a file something failed, and how: `FILE:LINE: ValueError: …`."""
    if isinstance(error, SyntaxError) and error.filename == file:
        line, said = error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == file), None)
        said = str(error)
    where = f"{file}:{line}" if line else file
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"{where}: {escape_text(what, 400)}"
