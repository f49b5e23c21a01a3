"""Plug-ins: what installed distributions offer as entry points of a group.

A plug-in is found by the name that a config gives, without running it; its code is hashed; and it
is loaded in every process that calls it. A `PlugIn` belongs into what the fingerprint of a stage
covers: another distribution, version or code then runs the stage again.
"""

import importlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.storage import hash_bytes, hash_file
from pipeline.core.words import did_you_mean_or_all

_imported: dict[str, str] = {}
"""Top-level package of a plug-in to the hash of the code that this process imported."""


@dataclass(frozen=True, kw_only=True)
class PlugIn:
    """An entry point of an installed distribution, and the hash of the code behind it."""

    group: str
    name: str
    value: str
    distribution: str
    version: str
    code_hash: str

    @property
    def module(self) -> str:
        """The module that the entry point names."""
        return self.value.partition(":")[0].strip()

    @property
    def shown(self) -> str:
        """As messages name it: `loud of acme-rules 1.2 (acme_rules:Loud)`."""
        words = f"{self.name} of {self.distribution} {self.version} ({self.value})"
        return escape_text(words, 300)


def list_plug_ins(group: str) -> list[str]:
    """The names that installed distributions offer in a group, in order."""
    return sorted({point.name for point in entry_points(group=group)})


def find_plug_in(group: str, name: str, key: str) -> PlugIn:
    """The plug-in that the config key `key` names. Raises ConfigError when no installed
    distribution has it, when several have, or when its module is not there."""
    points = list(entry_points(group=group, name=name))
    shown = f"{key}: {escape_text(name)}"
    if not points:
        raise ConfigError(
            f"{shown}: no installed package has an entry point of this name in the group {group}"
            f"{did_you_mean_or_all(name, list_plug_ins(group))}"
        )
    owners = sorted({_describe_owner(point) for point in points})
    if len(owners) > 1:
        raise ConfigError(
            f"{shown}: offered by {' and '.join(' '.join(owner) for owner in owners)}; uninstall "
            "all but one of them"
        )
    distribution, version = owners[0]
    found = PlugIn(
        group=group,
        name=name,
        value=points[0].value,
        distribution=distribution,
        version=version,
        code_hash="",
    )
    try:
        code_hash = _hash_code(found.module)
    except (Exception, SystemExit) as error:
        raise ConfigError(_describe_broken(found, error)) from error
    return replace(found, code_hash=code_hash)


def _describe_owner(point: EntryPoint) -> tuple[str, str]:
    if point.dist is None:
        return "an unnamed distribution", ""
    return point.dist.name, point.dist.version


@lru_cache(maxsize=64)
def load_plug_in(plug_in: PlugIn) -> Any:
    """The object that the entry point names, imported into this process. Raises ConfigError naming
    the distribution when its code is not what was hashed, or does not run."""
    try:
        code_hash = _hash_code(plug_in.module)
        if code_hash == plug_in.code_hash:
            _forget_other_code(plug_in.module.partition(".")[0], code_hash)
            return EntryPoint(plug_in.name, plug_in.value, plug_in.group).load()
    except (Exception, SystemExit) as error:
        raise ConfigError(_describe_broken(plug_in, error)) from error
    raise ConfigError(
        f"{plug_in.shown}: its code changed while the run was under way, or is another one on this "
        "worker; run the same command again"
    )


def _hash_code(module: str) -> str:
    """A hash of the module's file; of a package, of all its Python files."""
    origin = _find_file(module)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    lines = [f"{file.relative_to(origin.parent)} {hash_file(file)}\n" for file in files]
    return hash_bytes("".join(lines).encode())


def _find_file(module: str) -> Path:
    """The file of the outermost package of a module that has one, or else its own."""
    parts = module.split(".")
    for size in range(1, len(parts) + 1):
        name = ".".join(parts[:size])
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if spec.origin is not None and spec.has_location:
            return Path(spec.origin)
    raise ModuleNotFoundError(f"{module!r} has no file", name=module)


def _forget_other_code(package: str, code_hash: str) -> None:
    """Let a package be imported again when this process holds another version of its code."""
    if _imported.get(package, code_hash) != code_hash:
        for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
            del sys.modules[name]
        importlib.invalidate_caches()
    _imported[package] = code_hash


def _describe_broken(plug_in: PlugIn, error: BaseException) -> str:
    return (
        f"{plug_in.shown}: {describe_failure(error)}; the fault is in the package "
        f"{plug_in.distribution}: mend, update or uninstall it"
    )


def describe_failure(error: BaseException, file: str = "") -> str:
    """Where something failed in `file` (without one: in whatever file that Python did not bring
    itself), and how: `FILE:LINE: ValueError: …`."""
    said = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    places = [(f.filename, f.lineno) for f in frames if _is_foreign(f.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        places, said = [(error.filename, error.lineno)], error.msg
    line = next((n for name, n in reversed(places) if name == (file or name)), None)
    where = file or (places[-1][0] if places else "")
    place = f"{where}:{line}: " if line else f"{where}: " if where else ""
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"{place}{escape_text(what, 400)}"


def _is_foreign(file: str) -> bool:
    return file != __file__ and not file.startswith("<") and "importlib" not in Path(file).parts
