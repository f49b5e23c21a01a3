"""Plug-ins: what installed distributions add to Wafermill through entry points.

A distribution names an object in a group such as `wafermill.readers`; every process that needs it
imports it from its own installation. What a plug-in makes depends on its code, so its distribution,
version and the hash of its files are part of the fingerprint of each stage that uses it, and a
worker whose installation differs refuses to go on.
"""

import platform
import sys
import traceback
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib import machinery, metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

from pipeline.core.errors import ConfigError, FunctionError, PrepError, escape_text

T = TypeVar("T")

_CODE = tuple(machinery.SOURCE_SUFFIXES + machinery.EXTENSION_SUFFIXES)


@dataclass(frozen=True, order=True)
class PlugInCode:
    """Which code a plug-in is: the distribution it comes from, and the hash of its files."""

    distribution: str
    version: str
    code_hash: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}, code {self.code_hash}"


@dataclass(frozen=True)
class PlugIn(Generic[T]):
    """An object that a distribution offers, by the name of its entry point."""

    group: str
    name: str
    value: T
    code: PlugInCode
    root: str = ""
    """The file of its module, or the directory of the package that holds it."""

    @property
    def shown(self) -> str:
        """As messages begin."""
        code = self.code
        name = escape_text(self.name)
        return f"{code.distribution} {code.version}: its {self.group} entry point {name}"

    def refuse(self, problem: str) -> ConfigError:
        """The error for a plug-in that cannot be used as it is."""
        return ConfigError(f"{self.shown} {problem}; repair or uninstall that distribution")

    def fail(self, where: str, error: BaseException) -> PrepError:
        """The error for a plug-in that failed at its work: where that was, and in which of its
        lines. Errors of ours, of a damaged file for instance, stay what they are."""
        if isinstance(error, PrepError):
            return error
        if not is_failure(error):
            raise error
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        own = next((file for file in reversed(frames) if file.startswith(self.root)), "")
        return FunctionError(f"{self.shown} failed on {where}: {describe_failure(error, own)}")


def load_plug_ins(
    group: str, kind: type[T], built_in: Collection[str] = ()
) -> dict[str, PlugIn[T]]:
    """The plug-ins of a group by name, in order of their names.

    Raises ConfigError naming the distribution of one that does not load, is not a `kind`, or has
    the name of a built-in or of another one. Callers keep the answer: it hashes code.
    """
    loaded: dict[str, PlugIn[T]] = {}
    for entry in sorted(metadata.entry_points(group=group), key=_name_and_distribution):
        plug_in = _load(entry, kind)
        if entry.name in built_in:
            raise plug_in.refuse("has the name of a built-in")
        if entry.name in loaded:
            other = loaded[entry.name].code.distribution
            raise plug_in.refuse(f"has the name of one of {other}")
        loaded[entry.name] = plug_in
    return loaded


def _name_and_distribution(entry: metadata.EntryPoint) -> tuple[str, str]:
    return entry.name, entry.dist.name if entry.dist else ""


def _load(entry: metadata.EntryPoint, kind: type) -> PlugIn[Any]:
    assert entry.dist is not None
    code = PlugInCode(entry.dist.name, entry.dist.version, "")
    plug_in: PlugIn[Any] = PlugIn(entry.group, entry.name, None, code)
    try:
        value = entry.load()
    except (Exception, SystemExit) as error:
        failure = describe_failure(error, _failing_file(error, entry))
        raise plug_in.refuse(f"({entry.value}) does not load: {failure}") from error
    if not isinstance(value, kind):
        expected = "a class" if kind is type else f"{kind.__module__}.{kind.__name__}"
        raise plug_in.refuse(f"({entry.value}) is a {type(value).__name__}; expected {expected}")
    root, digest = _find_code(entry.module)
    return replace(plug_in, value=value, code=replace(code, code_hash=digest), root=root)


def is_failure(error: BaseException) -> bool:
    """Whether an error is the fault of what was called, and no signal or interrupt. A panic in Rust
    is no Exception."""
    return isinstance(error, Exception | SystemExit) or type(error).__name__ == "PanicException"


def check_unchanged(what: str, plug_in: PlugIn[Any] | None, code: PlugInCode | None) -> None:
    """Raise ConfigError where what is installed here is not the code with which the run began;
    `what` names it in words, such as "the input format tsv"."""
    if (plug_in and plug_in.code) != code:
        here = f"it is {plug_in.code}" if plug_in else "it is not installed"
        raise ConfigError(
            f"the run began with {what} of {code}, but on {platform.node()} {here}; install the "
            "same on every worker and change nothing while a run is under way"
        )


def _find_code(module: str) -> tuple[str, str]:
    """The outermost package that holds a module and is no namespace, and the hash of its code."""
    names = module.split(".")
    packages = (".".join(names[: n + 1]) for n in range(len(names)))
    outermost = next(name for name in packages if sys.modules[name].__file__)
    file = Path(str(sys.modules[outermost].__file__))
    package = hasattr(sys.modules[outermost], "__path__")
    root = file.parent
    files = [p for p in root.rglob("*") if p.name.endswith(_CODE)] if package else [file]
    digest = xxhash.xxh3_128()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root).as_posix()}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return str(root if package else file), digest.hexdigest()


def describe_failure(error: BaseException, file: str) -> str:
    """Where in a file something failed, and how: `FILE:LINE: ValueError: …`."""
    if isinstance(error, SyntaxError) and error.filename == file:
        line, message = error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == file), None)
        message = str(error)
    where = f"{file}:{line}: " if line else f"{file}: " if file else ""
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return where + escape_text(what, 400)


def _failing_file(error: BaseException, entry: metadata.EntryPoint) -> str:
    """The innermost file of the plug-in's own that an error passed through, if any."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename
    # An entry may be of the package importlib_metadata, which takes over once it is imported.
    loaders = machinery.__file__, str(sys.modules[type(entry).__module__].__file__)
    others = (__file__, *(str(Path(file).parent) for file in loaders), "<")
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((file for file in reversed(frames) if not file.startswith(others)), "")
