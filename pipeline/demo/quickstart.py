"""The built-in quickstart corpus: real text that is already on the user's machine.

`collect` gathers 12-20 MB from the Python standard library and the installed packages (sources,
documentation strings, README texts, licence files, change logs) into `.jsonl.zst` shards in the
user's cache directory and reuses them afterwards. Nothing is downloaded and nothing is shipped.
Near-duplicates are kept on purpose: licence texts repeat, and packages vendor each other.

The selection is a function of the environment alone: never of modification times, locale, hash
seed, listing order or compiled files. The directory is keyed by a hash over the records, and an
index maps the environment (package names and versions) to it, so a second call reads no package.

Limits: packages installed without a file list contribute their README only; files above 100 kB,
tests, undecodable files and files that record build settings of the machine are left out.
"""

import ast
import csv
import functools
import importlib.metadata
import json
import os
import platform
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dedup.user_cache import user_cache
from pipeline.core import storage, zstd
from pipeline.core.errors import InputError, IntegrityError, ResourceError
from pipeline.core.hashes import hash_bytes, hash_file, verify_file
from pipeline.demo import planted

__all__ = ["QUICKSTART", "collect"]

QUICKSTART = "quickstart"
"""The name in a prep config: `path: "builtin:quickstart"`."""

_VERSION = 2  # raise it whenever the same environment would give other records
_MIN_BYTES, _TARGET_BYTES = 12_000_000, 16_000_000
_FILE_CAP = 100_000  # bytes of one document
_SHARDS = 7
_LEVEL = 3  # zstd
# kind -> (bytes in all, bytes per package); the Python sources fill up what is left to the target
_SOURCES, _DOCSTRINGS = "Python Sources", "Docstrings"
_READMES, _LICENCES, _CHANGELOGS = "Package Readmes", "Licence Files", "Changelogs"
_BUDGETS = {
    _READMES: (1_500_000, 120_000),
    _LICENCES: (1_500_000, 250_000),
    _CHANGELOGS: (1_000_000, 120_000),
    _DOCSTRINGS: (2_200_000, 200_000),
    _SOURCES: (_TARGET_BYTES, 1_200_000),
}
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
# files that hold settings and paths of the machine they were made on
_MACHINE_FILES = re.compile(r"_sysconfigdata.*|__config__\.py|__editable__.*")
_NAMES = (
    (_READMES, re.compile(r"readme([-_.][a-z]+)?", re.I)),
    (_LICENCES, re.compile(r"(licen[cs]es?|copying|notice|authors)([-_.][\w.+-]*)?", re.I)),
    (_CHANGELOGS, re.compile(r"(changes|changelog|history|news|release_notes)(\.[a-z]+)?", re.I)),
)
_NOT_PROSE = {".c", ".h", ".html", ".json", ".pyc", ".pyi", ".so", ".toml", ".yaml", ".yml"}
_CHANGELOG_HEADING = re.compile(
    r"^[#=* ]*(change ?log|changes|release (notes|history)|history|what's new)\W*$", re.I | re.M
)


@dataclass(frozen=True)
class _Package:
    """One installed distribution, or the standard library."""

    name: str
    version: str
    licence: str
    description: str
    files: tuple[tuple[str, str], ...]  # (path relative to its root, where it lies)


@dataclass(frozen=True)
class _Candidate:
    """One document that could enter the corpus; `read` returns None when it is unfit."""

    kind: str
    package: _Package
    path: str
    read: Callable[[], str | None]

    @property
    def rank(self) -> tuple[str, str, str]:
        """Selection order: a hash of the last two path parts, so vendored copies stay together."""
        tail = "/".join(self.path.split("/")[-2:])
        return hash_bytes(f"{self.kind}\n{tail}".encode()), self.package.name, self.path


@dataclass(frozen=True)
class _Record:
    """One line of a shard."""

    kind: str
    text_bytes: int
    line: bytes


def collect(cache_root: Path | None = None) -> Path:
    """Return the directory that holds the corpus shards (`*.jsonl.zst`), building it if needed.

    `cache_root` defaults to the user's cache (`user_cache`); the corpus is in `quickstart-<hash>/`
    below it. A corpus whose sizes or hashes disagree with
    its manifest is built again. Raises InputError when the environment holds too little text and
    ResourceError when the cache cannot be written.
    """
    root = cache_directory(cache_root)
    index = root / "quickstart-index" / f"{_environment()[:24]}.json"
    earlier = _find_indexed(root, index)
    if earlier is not None:
        return earlier
    records = _gather()
    corpus_hash = hash_bytes(
        b"\n".join([str(_VERSION).encode(), *(r.line for r in records), *planted.lines()])
    )
    directory = root / f"quickstart-{corpus_hash[:12]}"
    if _manifest_hash(directory) is None:
        _publish(directory, records, corpus_hash)
    manifest_hash = hash_file(directory / "manifest.json")
    storage.write_json(index, {"directory": directory.name, "manifest_hash": manifest_hash})
    return directory


def cache_directory(root: Path | None = None) -> Path:
    """Where what is made once for a user lies, below `root` or the cache of `collect`."""
    root = root or user_cache()
    if root is None:
        raise ResourceError(
            "no home directory for the quickstart corpus; set WAFERMILL_CACHE to a directory"
        )
    return root


def _environment() -> str:
    """Hash of what decides the corpus: Python, platform, installed packages, this version."""
    packages = [(name, distribution.version) for name, distribution in _distributions()]
    interpreter = [sys.implementation.cache_tag, platform.python_version()]
    machine = [sys.platform, platform.machine()]
    return hash_bytes(storage.canonical_json([_VERSION, interpreter, machine, packages]))


def _distributions() -> list[tuple[str, importlib.metadata.Distribution]]:
    """Installed distributions by normalised name, the first on `sys.path` of each, sorted."""
    folders = [p for p in sys.path if Path(p).name in {"site-packages", "dist-packages"}]
    by_name: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions(path=folders):
        name = re.sub(r"[-_.]+", "-", _field(distribution, "Name")).lower()
        if name and name != "wafermill":
            by_name.setdefault(name, distribution)
    return sorted(by_name.items())


# -- reuse ------------------------------------------------------------------------------------


def _find_indexed(root: Path, index: Path) -> Path | None:
    """The directory that `index` names, if every byte of it is as recorded."""
    try:
        entry = json.loads(index.read_bytes())
        name, manifest_hash = str(entry["directory"]), entry["manifest_hash"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no index, or a damaged one: build again
    if not re.fullmatch(r"quickstart-[0-9a-f]{12}", name):
        return None
    return root / name if _manifest_hash(root / name) == manifest_hash else None


def _manifest_hash(directory: Path) -> str | None:
    """Hash of the manifest of a complete, undamaged corpus; None for anything else."""
    try:
        data = (directory / "manifest.json").read_bytes()
        for entry in json.loads(data)["files"]:
            path = directory / entry["name"]
            if path.stat().st_size != entry["size"]:
                return None
            verify_file(path, entry["hash"])
    except (OSError, ValueError, KeyError, TypeError, IntegrityError):
        return None
    return hash_bytes(data)


# -- build ------------------------------------------------------------------------------------


def _gather() -> list[_Record]:
    """The records in shard order, which is by hash; raises InputError below 12 MB."""
    candidates: dict[str, list[_Candidate]] = {kind: [] for kind in _BUDGETS}
    for package in [_standard_library(), *map(_package, _distributions())]:
        for candidate in _candidates(package):
            candidates[candidate.kind].append(candidate)
    records: list[_Record] = []
    total = 0
    for kind, (budget, per_package) in _BUDGETS.items():
        chosen = _select(candidates[kind], min(budget, _TARGET_BYTES - total), per_package)
        records += chosen
        total += sum(record.text_bytes for record in chosen)
    if total < _MIN_BYTES:
        raise InputError(
            f"quickstart corpus: this Python environment holds {total:,} bytes of text, at least "
            f"{_MIN_BYTES:,} are needed; install the project's dependencies or name your own input"
        )
    return sorted(records, key=lambda record: (hash_bytes(record.line), record.line))


def _select(candidates: Sequence[_Candidate], budget: int, per_package: int) -> list[_Record]:
    """Fit documents in rank order until `budget` bytes are reached."""
    chosen: list[_Record] = []
    total = 0
    used: Counter[str] = Counter()
    for candidate in sorted(candidates, key=lambda c: c.rank):
        name = candidate.package.name
        if total >= budget:
            break
        if used[name] >= per_package or (text := candidate.read()) is None:
            continue
        record = _record(candidate, text)
        used[name] += record.text_bytes
        total += record.text_bytes
        chosen.append(record)
    return chosen


def _record(candidate: _Candidate, text: str) -> _Record:
    package = candidate.package
    meta = {
        "pile_set_name": candidate.kind,
        "license": package.licence,
        "package": package.name,
        "version": package.version,
        "path": candidate.path,
    }
    line = msgspec.json.encode({"text": text, "meta": meta})
    return _Record(candidate.kind, len(text.encode()), line)


def _publish(directory: Path, records: Sequence[_Record], corpus_hash: str) -> None:
    """Write the shards, then the manifest whose rename is the commit."""
    total = sum(record.text_bytes for record in records)
    shards: list[list[_Record]] = [[] for _ in range(_SHARDS)]
    before = 0
    for record in records:
        shards[before * _SHARDS // total].append(record)
        before += record.text_bytes
    contents = {f"shard-{i:02d}": [r.line for r in shard] for i, shard in enumerate(shards)}
    contents["zz-planted"] = list(planted.lines())
    files = []
    for name, lines in contents.items():
        data = b"".join(line + b"\n" for line in lines)
        packed = zstd.compress(
            data,
            options={
                zstd.CompressionParameter.compression_level: _LEVEL,
                zstd.CompressionParameter.checksum_flag: 1,
            },
        )
        stored = storage.publish(directory / f"{name}.jsonl.zst", packed)
        entry = {"name": f"{name}.jsonl.zst", "size": stored.size, "hash": stored.hash}
        files.append({**entry, "records": len(lines)})
    sizes: Counter[str] = Counter()
    for record in records:
        sizes[record.kind] += record.text_bytes
    manifest = {"version": _VERSION, "corpus_hash": corpus_hash, "files": files}
    manifest |= {"text_bytes": total, "text_bytes_by_source": dict(sizes)}
    storage.write_json(directory / "manifest.json", manifest)


# -- where documents come from ------------------------------------------------------------------


def _standard_library() -> _Package:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in _SKIPPED_FOLDERS and f[:7] != "config-"]
        files += [os.path.join(folder, name) for name in names]
    relative = tuple(
        sorted((path[len(str(root)) + 1 :].replace(os.sep, "/"), path) for path in files)
    )
    return _Package("python", platform.python_version(), "PSF-2.0", "", relative)


def _package(installed: tuple[str, importlib.metadata.Distribution]) -> _Package:
    name, distribution = installed
    root, files = str(distribution.locate_file("")), {}
    for path in _list_files(distribution):
        if not path.startswith("/") and ".." not in path.split("/"):
            files[path] = os.path.join(root, path)
    fields = [_field(distribution, name) for name in ("License-Expression", "License")]
    short = next((f for f in fields if f and "\n" not in f and len(f) <= 100), "")
    classifiers = distribution.metadata.get_all("Classifier") or ()
    classified = [str(c).split(" :: ")[-1] for c in classifiers if str(c).startswith("License :: ")]
    licence = short or "; ".join(classified) or "unknown"
    description = _field(distribution, "Description")
    return _Package(name, distribution.version, licence, description, tuple(sorted(files.items())))


def _list_files(distribution: importlib.metadata.Distribution) -> list[str]:
    """As `distribution.files`, which takes a second for all that is installed, for its paths."""
    record = distribution.read_text("RECORD")
    if record is None:
        return [path.as_posix() for path in distribution.files or ()]
    return [row[0] for row in csv.reader(record.splitlines()) if row]


def _field(distribution: importlib.metadata.Distribution, name: str) -> str:
    """One metadata field, empty when it is not there."""
    values = distribution.metadata.get_all(name)
    return str(values[0]) if values else ""


def _candidates(package: _Package) -> Iterator[_Candidate]:
    """Every document that `package` offers, in no order of meaning."""
    if package.description.strip():
        heading = _CHANGELOG_HEADING.search(package.description)
        border = heading.start() if heading else len(package.description)
        metadata = (p for p, _ in package.files if p.endswith((".dist-info/METADATA", "/PKG-INFO")))
        path = next(metadata, f"{package.name}-{package.version}.dist-info/METADATA")
        readme, changelog = package.description[:border], package.description[border:]
        yield _Candidate(_READMES, package, path, functools.partial(_head, readme))
        yield _Candidate(_CHANGELOGS, package, path, functools.partial(_head, changelog))
    for path, place in package.files:
        *folders, name = path.split("/")
        if _SKIPPED_FOLDERS.intersection(folders) or _MACHINE_FILES.fullmatch(name):
            continue
        if name.endswith(".py"):
            yield _Candidate(_SOURCES, package, path, functools.partial(_read, place))
            yield _Candidate(_DOCSTRINGS, package, path, functools.partial(_docstrings, place))
        elif os.path.splitext(name)[1] not in _NOT_PROSE:
            for kind, pattern in _NAMES:
                if pattern.fullmatch(name):
                    yield _Candidate(kind, package, path, functools.partial(_read, place))


def _head(text: str) -> str | None:
    """`text`, cut at the last line break before the cap."""
    while len(text.encode(errors="replace")) > _FILE_CAP:
        text = text[: max(text.rfind("\n", 0, _FILE_CAP), 0)]
    return _fit(text)


def _fit(text: str) -> str | None:
    """`text` if it holds something, and nothing that cannot be written as UTF-8; NUL counts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text if text.strip() and "\0" not in text else None


def _read(path: str) -> str | None:
    """The text of a file, or None when it is absent, too large, empty or not UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_CAP + 1)
        return None if len(data) > _FILE_CAP else _fit(data.decode())
    except (OSError, UnicodeDecodeError):
        return None


def _docstrings(path: str) -> str | None:
    """The documentation strings of a module, each under the name it belongs to."""
    source = _read(path)
    if source is None or source.count('"""') < 4:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None  # a template, or the source of another Python version
    pieces = [f"{name}\n\n{text}\n" for name, text in _list_documented(tree, Path(path).stem)]
    return _fit("\n".join(pieces)) if len(pieces) > 1 else None


def _list_documented(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Dotted name and documentation string of a module or class and of what it defines."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := (ast.get_docstring(node) or "").strip():
            yield name, text
        for child in node.body:
            yield from _list_documented(child, f"{name}.{getattr(child, 'name', '')}")
