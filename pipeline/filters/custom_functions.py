"""Functions of the user's own: found, checked against their settings, and loaded where they run."""

import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pipeline.config.filters import (
    CustomFilterConfig,
    FunctionConfig,
    WordsConfig,
    is_file,
    is_plug_in,
    split_function,
)
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.hashes import hash_bytes, read_at_most
from pipeline.core.plugins import PlugIn, describe_failure, load_plug_ins
from pipeline.core.words import did_you_mean

Function = Callable[..., Any]
GROUP = "wafermill.filters"
"""The group of entry points that filters are found in."""

_LARGEST_FILE = 16 << 20
_on_path: list[str] = []
_registered: dict[str, ModuleType] = {}


@cache
def installed_filters() -> Mapping[str, PlugIn[FunctionType]]:
    """The filters of installed packages by name. Raises ConfigError naming the distribution of one
    that is broken."""
    return load_plug_ins(GROUP, FunctionType)


@dataclass(frozen=True, kw_only=True)
class FunctionPlace:
    """Where a function is: the config key that names it, its name there, and its file; of a module
    its name, and the directory that counts as well as Python's path; of a plug-in its
    distribution."""

    key: str
    given: str
    file: str
    module: str = ""
    directory: str = ""
    distribution: str = ""

    @property
    def shown(self) -> str:
        """Config key and function, as messages begin."""
        of = f" of {self.distribution}" if self.distribution else ""
        return f"{self.key}: {escape_text(self.given)}{of}"


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


def read_function_file(place: FunctionPlace) -> bytes:
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
    loaded = importlib.util.module_from_spec(spec)
    forget_module(name)
    if sys.modules.setdefault(name, loaded) is loaded:
        _registered[name] = loaded
    loader.exec_module(loaded)
    return loaded


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


def list_given(config: FunctionConfig) -> tuple[str, ...]:
    """What a function is given; its settings follow by keyword."""
    if isinstance(config, WordsConfig):
        return ("line",)
    return ("batch",) if takes_batches(config) else ("text", "meta")


def load_custom_filters(
    configs: Sequence[CustomFilterConfig], base: Path
) -> tuple[CustomFilter, ...]:
    """The functions that a config names, files relative to `base`. Raises ConfigError for one that
    is not there, does not take its settings or has the name of another one."""
    filters: dict[str, CustomFilter] = {}
    for number, config in enumerate(configs):
        section = f"filters.custom.{number}"
        own = load_function_of(config, base, section)
        if own.name in filters:
            raise ConfigError(
                f"{section}.function: {escape_text(config.function)}: another filter has the name "
                f"{own.name} ({filters[own.name].location.given}); the name is the reason of what "
                "is dropped, so give one of the functions another name"
            )
        filters[own.name] = own
    return tuple(filters.values())


def load_function_of(config: FunctionConfig, base: Path, section: str) -> CustomFilter:
    """The function that a section names. Raises ConfigError when it is not there or does not take
    its settings."""
    place, name = _find(config.function, base, f"{section}.function")
    file_hash = hash_bytes(read_function_file(place))
    function = _function(load_module(place, file_hash), name, place)
    _check_signature(function, config, f"{section}: {name} of {place.file}")
    settings = json.dumps(config.settings, sort_keys=True)
    return CustomFilter(name, file_hash, settings, takes_batches(config), place)


def _find(reference: str, base: Path, key: str) -> tuple[FunctionPlace, str]:
    distribution = ""
    if is_plug_in(reference):
        plug_in = installed_filters().get(reference)
        if plug_in is None:
            raise ConfigError(
                f"{key}: {reference}: expected MODULE:FUNCTION, such as my_rules:keep, "
                f"FILE.py:FUNCTION, or the name of an entry point in the group {GROUP}"
                f"{did_you_mean(reference, installed_filters())}"
            )
        distribution = f"{plug_in.code.distribution} {plug_in.code.version}"
        where, name = plug_in.value.__module__, plug_in.value.__name__
    else:
        where, name = split_function(reference)
    if is_file(where):
        path = base / where
        if not path.is_file():
            near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.py")])
            raise ConfigError(
                f"{key}: {escape_text(reference)}: there is no file {path} (a relative path starts "
                f"at the directory of the config){near}"
            )
        return FunctionPlace(key=key, given=reference, file=str(path.resolve())), name
    directory = os.getcwd()
    file = _module_file(where, directory, base, f"{key}: {escape_text(reference)}")
    place = FunctionPlace(
        key=key,
        given=reference,
        file=file,
        module=where,
        directory=directory,
        distribution=distribution,
    )
    return place, name


def _module_file(module: str, directory: str, base: Path, where: str) -> str:
    add_to_path(directory)
    forget_module(module)
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{where}: {describe_failure(error, '')}") from error
        spec = None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {describe_failure(error, '')}") from error
    if spec is None:
        raise ConfigError(f"{where}: {_missing(module, directory, base)}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigError(f"{where}: {module} has no Python file ({spec.origin}); expected one")
    return str(Path(spec.origin).resolve())


def _missing(module: str, directory: str, base: Path) -> str:
    beside = f"{module}.py"
    if (base / beside).is_file():
        return (
            f"no module {module} is on Python's path or in {directory}; for the file next to the "
            f"config write {beside}:FUNCTION"
        )
    near = did_you_mean(module, [info.name for info in pkgutil.iter_modules([directory])])
    return (
        f"no module {module} is on Python's path or in {directory}{near or ';'} install it, name "
        "its directory in PYTHONPATH, or write FILE.py:FUNCTION with a path relative to the config"
    )


def _function(module: ModuleType, name: str, place: FunctionPlace) -> Function:
    """The function of a module. Raises ConfigError unless its own code is in the module's file,
    whose hash says whether it changed."""
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("__")]
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(f"{place.shown}: {place.file} has no {name}{did_you_mean(name, names)}")
    if not callable(function):
        kind = f"a value of type {type(function).__name__}"
        raise ConfigError(f"{place.shown}: {name} is {kind}; expected a function")
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None and code.co_filename != place.file:
        raise ConfigError(
            f"{place.shown}: {name} is defined in {code.co_filename}; name that file, so that a "
            "change of it is seen, or call it in a function of your own"
        )
    return function  # type: ignore[no-any-return]


def takes_batches(config: FunctionConfig) -> bool:
    """Whether it is given batches, and not one text after the other."""
    return isinstance(config, CustomFilterConfig) and config.batch


def _check_signature(function: Function, config: FunctionConfig, where: str) -> None:
    """Raises ConfigError when the function cannot be called with what a filter is given and these
    settings."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):  # compiled code need not have one
        return
    arguments = list_given(config)
    signature = f"def {config.function.rpartition(':')[2]}({', '.join(arguments)}, *, …)"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(positional) < len(arguments) and not takes_more:
        hint = "; for one that takes a batch write batch: true" if len(positional) == 1 else ""
        raise ConfigError(
            f"{where} takes {len(positional)} of the {len(arguments)} things it is given; expected "
            f"{signature}{hint}"
        )
    own = [p for p in parameters if p not in positional[: len(arguments)]]
    settings = {p.name: p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in own)
    problems = [
        f"there is no setting {escape_text(name)}{did_you_mean(name, settings)}"
        for name in config.settings
        if (name not in settings and not takes_any) or name in arguments
    ]
    problems += [
        f"settings.{name} is missing"
        for name, p in settings.items()
        if p.default is p.empty and name not in config.settings
    ]
    if problems:
        takes = ", ".join(settings) or "no settings"
        raise ConfigError(f"{where}: {'; '.join(problems)} (it takes {takes})")
