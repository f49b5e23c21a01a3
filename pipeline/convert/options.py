"""What `prep convert` was asked for, as plain data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pipeline.convert.inputs import KINDS, Kind
from pipeline.core.errors import ConfigError
from pipeline.hdf5.format import Compression

To = Literal["hdf5", "corpus", "bin", "jsonl", "jsonl.zst", "parquet"]
TARGETS: tuple[To, ...] = get_args(To)
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
DEFAULT_LENGTH = 2048
DEFAULT_SHARD = 128 << 20


@dataclass(frozen=True)
class ConvertOptions:
    """The arguments; None where the default depends on the input."""

    inputs: tuple[str, ...]
    to: To
    out: Path
    kind: Kind | None = None
    tokenizer: str | None = None
    eos: str | None = None
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
    split: str | None = None
    """The only split of a run to convert; None: all of them."""

    def __post_init__(self) -> None:
        _one_of("--to", self.to, TARGETS)
        if self.kind is not None:
            _one_of("--from", self.kind, KINDS)
        _one_of("--compression", self.compression, COMPRESSIONS)
        for name, value in (("--msl", self.length), ("--samples-per-file", self.samples_per_file)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: {value}; expected at least 1")
        if self.length is not None and self.to != "hdf5":
            raise ConfigError(f"--msl: only rows have a length (--to hdf5), not {self.to}")
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


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{option}: {value!r}; expected one of {', '.join(allowed)}")
