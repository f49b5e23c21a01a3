"""The config of `prep`: every field typed, documented with its unit, and frozen."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline.core.config_model import Bytes, FrozenModel, Share, parse
from pipeline.core.strict_yaml import load
from pipeline.shipped import find_config

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class InputConfig(FrozenModel):
    """One collection of raw shards."""

    name: Name = Field(description="identity of the collection; part of every document's key")
    path: str = Field(
        description="a file, a directory or a glob, relative to this config; or builtin:quickstart"
    )
    text_key: str = Field("text", description="name of the field or column that holds the text")
    sources: tuple[str, ...] | None = Field(
        None, description="allowed source labels (pile_set_name); others are bad records"
    )


class ReadConfig(FrozenModel):
    """Reading raw shards."""

    task_bytes: Bytes = Field(
        64 << 20, ge=1 << 10, description="estimated bytes of text in one task"
    )
    max_document_bytes: Bytes = Field(
        64 << 20, ge=1, description="largest record in bytes, as read"
    )
    on_bad_record: Literal["drop", "fail"] = Field(
        "drop", description="drop and count bad records, or treat a shard that holds one as damaged"
    )
    on_bad_shard: Literal["fail", "skip"] = Field(
        "fail", description="stop after naming all damaged shards, or leave them out and count them"
    )
    max_bad_share: Share = Field(
        0.01, description="largest share of bad records before the run stops"
    )


class CleanConfig(FrozenModel):
    """Cleaning text: ftfy with NFC, then SlimPajama's low-length filter."""

    min_length: int = Field(
        200, ge=0, description="characters left after lower-casing, dropping ASCII punctuation and "
        "collapsing white space; shorter documents are dropped"
    )  # fmt: skip


class DedupConfig(FrozenModel):
    """Near-duplicate removal."""

    recipe: Literal["slimpajama", "none"] = Field(
        "slimpajama",
        description="13-character shingles, 128 permutations, 9 bands of 13 rows; or none",
    )
    source_priority: tuple[str, ...] = Field(
        (), description="source labels preferred as representatives, best first"
    )


class ScreenConfig(FrozenModel):
    """Provenance screening."""

    rules: str = Field("builtin:default", description="a YAML list of rules, or builtin:default")


class TokenizeConfig(FrozenModel):
    """Tokenizing the documents that are kept."""

    tokenizer: Literal["gpt2"] = Field("gpt2", description="GPT-2 byte-level BPE, 50257 entries")


class PackConfig(FrozenModel):
    """Shuffling, splitting and packing."""

    max_sequence_length: int = Field(2048, ge=2, le=1 << 17, description="tokens in one row (MSL)")
    validation_share: Share = Field(
        0.0017, description="share of documents held out for validation"
    )
    bucket_tokens: int = Field(
        1 << 25,
        ge=1 << 10,
        description="tokens in one shuffle bucket, what one task holds in memory",
    )


class Hdf5Config(FrozenModel):
    """HDF5 shards."""

    shard_bytes: Bytes = Field(
        128 << 20, ge=1 << 10, le=256 << 20, description="bytes of rows in one shard"
    )


class Config(FrozenModel):
    """A whole preparation."""

    name: Name = Field(description="name of the run; the default output is ./runs/<name>")
    seed: int = Field(1, ge=0, lt=1 << 63, description="seed of splits and shuffles")
    inputs: tuple[InputConfig, ...] = Field(min_length=1, description="collections of raw shards")
    read: ReadConfig = ReadConfig()
    clean: CleanConfig = CleanConfig()
    dedup: DedupConfig = DedupConfig()
    screen: ScreenConfig = ScreenConfig()
    tokenize: TokenizeConfig = TokenizeConfig()
    pack: PackConfig = PackConfig()
    hdf5: Hdf5Config = Hdf5Config()

    @field_validator("inputs")
    @classmethod
    def _unique_names(cls, inputs: tuple[InputConfig, ...]) -> tuple[InputConfig, ...]:
        names = [i.name for i in inputs]
        if len(set(names)) < len(names):
            raise ValueError("expected input names that differ from one another")
        return inputs


class LoadedConfig(FrozenModel):
    """A config and the directory its relative paths start from."""

    config: Config
    base: Path


def load_config(name_or_path: str | Path, overrides: tuple[str, ...] = ()) -> LoadedConfig:
    """Read and check a config: a path, or the bare name of a shipped one such as `quickstart`.

    Raises ConfigError with one line naming file, line, key, what was expected and a did-you-mean.
    """
    path = find_config("prep", name_or_path)
    loaded = load(path)
    if isinstance(loaded.value, dict):
        loaded.value.setdefault("name", path.stem)
    return LoadedConfig(config=parse(Config, loaded, overrides), base=path.resolve().parent)
