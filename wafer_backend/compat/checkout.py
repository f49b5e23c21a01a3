"""A checkout: its Python files, which of them import which, and what each program would meet.

Modules are looked for as if the checkout, its `src` and the folder of the importing file were on
Python's path.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wafer_backend.compat.source import (
    Import,
    MissingName,
    SourceCheck,
    SourceFile,
    is_of_api,
    read_source,
)
from wafer_backend.errors import BackendConfigError


@dataclass(frozen=True)
class Program:
    """A file that can be run, and the first missing name that its imports meet, if any.

    `packages`: other packages that it and the files it imports need and that are not installed.
    """

    path: Path
    stopped_at: tuple[Path, MissingName] | None
    packages: tuple[str, ...]


@dataclass
class Checkout:
    """What was found. `missing`: every file that uses the API, with what it lacks here."""

    root: Path
    missing: dict[Path, list[MissingName]] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)
    unreadable: dict[Path, str] = field(default_factory=dict)

    @property
    def complete(self) -> int:
        """Files that have every name."""
        return sum(not findings for findings in self.missing.values())


def read_checkout(root: Path) -> Checkout:
    """Read every Python file below `root`, except in hidden folders.

    Raises BackendConfigError when it is no folder, or has no Python file.
    """
    if not root.is_dir():
        raise BackendConfigError(f"{root} is not a folder; give the folder of a checkout")
    checkout, sources = Checkout(root), {}
    for path in _python_files(root):
        try:
            source = read_source(path, root)
        except (SyntaxError, ValueError) as error:
            checkout.unreadable[path.relative_to(root)] = str(error)
        else:
            sources[source.path] = source
    if not sources and not checkout.unreadable:
        raise BackendConfigError(f"{root} has no Python file; give the folder of a checkout")
    modules = _Modules(sources)
    for source in sources.values():
        names = modules.names_of_api(source)
        if names:
            checkout.missing[source.path] = SourceCheck(source, names).find_missing()
    for source in sources.values():
        if source.is_program:
            program = _find_stop(source, modules, checkout.missing)
            if program is not None:
                checkout.programs.append(program)
    return checkout


def _python_files(root: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


class _Modules:
    """The modules of a checkout by name, and what their names are bound to."""

    def __init__(self, sources: dict[Path, SourceFile]) -> None:
        self._sources = sources
        self._folders = {part for path in sources for part in path.parts[:-1]}

    def is_folder(self, name: str) -> bool:
        """Whether the checkout has a folder of this name, so that it may be a package there."""
        return name in self._folders

    def find(self, source: SourceFile, one: Import) -> list[SourceFile]:
        """The files that an import runs: the module's, and a submodule's that it names."""
        if one.level:
            package = source.path.parents[one.level - 1]
            bases = [package]
        else:
            bases = [Path(), Path("src"), source.path.parent]
        parts = one.module.split(".") if one.module else []
        for base in bases:
            found = [self._file(base.joinpath(*parts[:n])) for n in range(1, len(parts) + 1)]
            if one.level and not parts:
                found = [self._file(base)]
            if one.name is not None:
                found.append(self._file(base.joinpath(*parts, one.name)))
            files = [file for file in found if file is not None]
            if files:
                return files
        return []

    def names_of_api(self, source: SourceFile) -> dict[str, str]:
        """Local name -> dotted name of the API; those of other files of the checkout, too."""
        names = {}
        for one in source.imports:
            path = self._path_of_api(source, one, frozenset())
            if path is not None:
                names[one.local] = path
        return names if any(path != "cerebras" for path in names.values()) else {}

    def _path_of_api(
        self, source: SourceFile, one: Import, seen: frozenset[tuple[Path, str]]
    ) -> str | None:
        if not one.level and is_of_api(one.module):
            return one.module if one.name is None else f"{one.module}.{one.name}"
        if one.module == "cerebras" and not one.level:
            return "cerebras" if one.name is None else f"cerebras.{one.name}"
        if one.name is None or (source.path, one.name) in seen:
            return None
        for file in self.find(source, one)[-1:]:
            for other in file.imports:
                if other.local == one.name and other.at_import:
                    path = self._path_of_api(file, other, seen | {(source.path, one.name)})
                    if path is not None and is_of_api(path):
                        return path
        return None

    def _file(self, module: Path) -> SourceFile | None:
        own = self._sources.get(module.with_name(module.name + ".py")) if module.name else None
        return own or self._sources.get(module / "__init__.py")


def _find_stop(
    program: SourceFile, modules: _Modules, missing: dict[Path, list[MissingName]]
) -> Program | None:
    """Follow the imports of a program, depth first, as Python does; None: it needs no API."""
    packages: set[str] = set()
    stop: tuple[Path, MissingName] | None = None
    seen, waiting, uses_api = {program.path}, [program], False
    while waiting:
        source = waiting.pop()
        uses_api |= source.path in missing
        stops = [one for one in missing.get(source.path, []) if one.at_import]
        if stops and stop is None:
            stop = (source.path, stops[0])
        for one in source.imports:
            if not one.at_import:
                continue
            files = modules.find(source, one)
            if not files and not modules.is_folder(one.module.partition(".")[0]):
                packages |= _not_installed(one)
            fresh = [file for file in files if file.path not in seen]
            seen |= {file.path for file in fresh}
            waiting += fresh
    return Program(program.path, stop, tuple(sorted(packages))) if uses_api else None


def _not_installed(one: Import) -> set[str]:
    name = one.module.partition(".")[0]
    known = one.level or is_of_api(one.module) or name == "cerebras" or name in _STANDARD
    return set() if known or importlib.util.find_spec(name) is not None else {name}


_STANDARD = sys.stdlib_module_names
