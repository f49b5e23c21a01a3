"""What `prep convert` was asked for, as plain data, and what INPUT… is: text, HDF5, `.bin`, parquet
of token ids, a saved Hugging Face dataset, a run.
"""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow.parquet as pq

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.convert.token_rows import find_token_column, is_token_list
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.places import is_in_bucket, open_place
from pipeline.core.words import require_choice
from pipeline.hdf5.format import Compression
from pipeline.runs import layout
from pipeline.sources.listing import SPLITS, STATE, check_one_split
from pipeline.sources.output_format import OTHER_TARGETS, load_plugged_outputs

Kind = Literal["text", "hdf5", "bin", "tokens", "dataset", "run"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_HDF5 = (".h5", ".hdf5")
_BIN = (".bin", ".idx")
_LOADER_INDEX = "index.json"


@dataclass(frozen=True)
class ConvertInputs:
    """All inputs, of one kind; `paths` is empty for text, whose reader finds the files."""

    kind: Kind
    given: tuple[str, ...]
    paths: tuple[Path, ...] = ()


def detect_inputs(inputs: Sequence[str], kind: Kind | None, text_key: str) -> ConvertInputs:
    """Look at the inputs. Raises InputError for one that is not there, ConfigError for several
    kinds at once."""
    expanded = [path for name in inputs for path in _expand_name(name)]
    kinds = [(kind or _kind(path, text_key), path) for path in expanded]
    present = {k for k, _ in kinds}
    if len(present) > 1:
        examples = "; ".join(f"{next(p for k2, p in kinds if k2 == k)} is {k}" for k in present)
        raise ConfigError(f"inputs of several kinds ({examples}): convert each kind on its own")
    only = next(iter(present))
    if only == "text":
        return ConvertInputs("text", tuple(inputs))
    return ConvertInputs(only, tuple(inputs), tuple(_members([Path(p) for p in expanded], only)))


def _expand_name(name: str) -> list[str]:
    if not Path(name).suffix and is_in_bucket(name, layout.MANIFEST):
        return [str(open_place(Path(name)))]
    if Path(name).exists() or "://" in name or Path(f"{name}.bin").exists():
        return [name]
    if not glob.has_magic(name):
        raise InputError(f"{name}: no such file or directory")
    paths = sorted(glob.glob(name, recursive=True))
    if not paths:
        raise InputError(f"{name}: found nothing")
    return paths


def _kind(name: str, text_key: str) -> Kind:
    path = Path(name)
    if path.is_dir():
        return _kind_of_directory(path, text_key)
    if path.name.endswith(_HDF5):
        return "hdf5"
    if path.name.endswith(_BIN) or path.with_name(path.name + ".bin").is_file():
        return "bin"
    if path.name.endswith(".parquet") and path.is_file():
        return "tokens" if _holds_tokens(path, text_key) else "text"
    return "text"


def _kind_of_directory(path: Path, text_key: str) -> Kind:
    if (path / SPLITS).is_file() or (path / STATE).is_file():
        check_one_split(path)
        return "dataset" if _holds_saved_tokens(path, text_key) else "text"
    if (path / layout.MANIFEST).is_file() and (path / "hdf5").is_dir():
        return "run"
    names = sorted(entry.name for entry in path.iterdir())
    if _LOADER_INDEX in names and any(name.endswith((".mds", ".bin")) for name in names):
        raise InputError(
            f"{path}: {_LOADER_INDEX} says that these are MDS or LitData shards, which are written "
            "but not read; convert what they were made of"
        )
    if any(name.endswith(_HDF5) for name in names):
        return "hdf5"
    if any(name.endswith(".bin") for name in names):
        return "bin"
    tables = [name for name in names if name.endswith(".parquet")]
    return "tokens" if tables and _holds_tokens(path / tables[0], text_key) else "text"


def _holds_tokens(path: Path, text_key: str) -> bool:
    return find_token_column(path) is not None and text_key not in pq.read_schema(path).names


def open_saved(path: Path) -> Any:
    """A saved Hugging Face dataset. Raises InputError."""
    import datasets

    splits = path / SPLITS
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a valid saved dataset: {error}") from error
    if splits.is_file():
        (only,) = loaded.values()
        return only
    return loaded


def _holds_saved_tokens(path: Path, text_key: str) -> bool:
    schema = open_saved(path).features.arrow_schema
    return text_key not in schema.names and any(is_token_list(field.type) for field in schema)


def _members(paths: list[Path], kind: Kind) -> list[Path]:
    """Files of directories and prefixes, in the order given; directories of HDF5 and of runs stay
    directories."""
    if kind in ("hdf5", "dataset", "run"):
        return paths
    if kind == "tokens":
        groups = (_list_files(path, ".parquet") if path.is_dir() else [path] for path in paths)
        return [file for files in groups for file in files]
    members = []
    for path in paths:
        if path.is_dir():
            members += _list_files(path, ".bin")
        elif path.suffix in _BIN:
            members.append(path.with_suffix(".bin"))
        else:
            members.append(path.with_name(path.name + ".bin"))
    return list(dict.fromkeys(members))


def _list_files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"*{suffix}"))


TARGETS = (*OTHER_TARGETS, "jsonl", "jsonl.zst", "parquet")
"""What `--to` can name, apart from output formats of plug-ins."""
ROWS = ("hdf5", "mds", "litdata")
"""Targets of rows, all of one length."""
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
DEFAULT_LENGTH = 2048
DEFAULT_SHARD = 128 << 20


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The arguments; None where the default depends on the input."""

    inputs: tuple[str, ...]
    to: str
    out: Path
    kind: Kind | None = None
    tokenizer: str | None = None
    eos: str | None = None
    bos: str | None = None
    """`none` for no token before a document."""
    eos_id: int | None = None
    length: int | None = None
    samples_per_file: int | None = None
    shard_size: int | None = None
    compression: Compression = "gzip"
    text_key: str = "text"
    template: str | None = None
    input_format: str | None = None
    lossy: bool = False
    add_eos: bool = False
    workers: int | None = None
    cluster: Cluster = LOCAL
    split: str | None = None
    """The only split of a run to convert; None: all of them."""

    def __post_init__(self) -> None:
        if self.to not in TARGETS:
            require_choice("--to", self.to, [*TARGETS, *load_plugged_outputs()])
        if self.kind is not None:
            _check_choice("--from", self.kind, KINDS)
        _check_choice("--compression", self.compression, COMPRESSIONS)
        for name, value in (("--msl", self.length), ("--samples-per-file", self.samples_per_file)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: {value}; expected at least 1")
        if self.length is not None and self.to not in ROWS:
            forms = ", ".join(ROWS)
            raise ConfigError(f"--msl: only rows have a length (--to {forms}), not {self.to}")
        if self.samples_per_file is not None and self.to != "hdf5":
            raise ConfigError("--samples-per-file: only --to hdf5 counts rows; give --shard-size")
        if self.samples_per_file is not None and self.shard_size is not None:
            raise ConfigError("--samples-per-file and --shard-size: give only one of them")
        if self.shard_size is not None and self.to == "bin":
            raise ConfigError("--shard-size: --to bin writes one .bin, whatever its size")
        if self.shard_size is not None and not 1 << 10 <= self.shard_size <= 1 << 31:
            raise ConfigError("--shard-size: expected between 1 KiB and 2 GiB")
        if self.tokenizer is not None and self.eos_id is not None:
            raise ConfigError(
                "--eos-id: with --tokenizer, name the token that ends a document with --eos instead"
            )


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{option}: {value!r}; expected one of {', '.join(allowed)}")


def refuse_cluster(options: ConvertOptions, kind: Kind) -> None:
    """Raises ConfigError where workers elsewhere have nothing to do: only texts are tokenized."""
    if options.cluster.kind != "local":
        raise ConfigError(
            f"--cluster: workers elsewhere tokenize text, and the input is {kind}; leave it out"
        )
