"""The config of `prep`: every field typed, documented with its unit, and frozen."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pipeline.core.config_model import Bytes, FrozenModel, RelativePath, Share, parse
from pipeline.core.strict_yaml import load
from pipeline.filters.settings import FiltersConfig
from pipeline.input_config import InputConfig, Name
from pipeline.mixture_config import MixtureConfig
from pipeline.shipped import find_config
from pipeline.sources.template import column_name, field_path

SHARD_LIMIT = 256 << 20
"""Bytes of rows that one HDF5 shard may hold: it is built in memory."""

Paths = Annotated[tuple[str, ...], RelativePath()]
SplitName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]


class ReadConfig(FrozenModel):
    """Reading raw shards."""

    task_bytes: Bytes = Field(
        64 << 20,
        ge=1 << 10,
        description="bytes of text in one task: small files are packed by "
        "their estimate, a larger file is cut into parts",
    )
    max_document_bytes: Bytes = Field(
        64 << 20, ge=1, description="largest record in bytes, as read"
    )
    max_file_bytes: Bytes = Field(
        1 << 40, ge=1, description="largest raw shard in bytes, decompressed; more is a damaged one"
    )
    max_ratio: float = Field(
        250.0,
        ge=1,
        description="most decompressed bytes per byte of a raw shard, from 256 MiB on; more is a "
        "damaged one",
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
    fix_text: bool = Field(
        True, description="repair mojibake and the like with ftfy; false leaves the text as it is"
    )
    mask: tuple[Literal["email", "ip", "phone"], ...] = Field(
        (), description="what is masked in the text: email, ip, phone (needs the extra `pii`)"
    )
    phone_regions: tuple[str, ...] = Field(
        (), description="countries, such as US, whose phone numbers are found without country code"
    )


class DedupConfig(FrozenModel):
    """Duplicate removal. A preset fixes shingles, bands and signature scheme; `custom` takes the
    keys from `unit` to `permutations`, which other presets refuse."""

    preset: Literal[
        "slimpajama", "slimpajama_exact", "fineweb", "strict", "custom", "exact", "none"
    ] = Field(
        "slimpajama",
        description="near-duplicates by MinHash LSH; exact: only documents whose normalised text "
        "is the same; none: no removal",
    )
    unit: Literal["char", "word"] | None = Field(None, description="custom: shingle unit")
    size: int | None = Field(None, ge=1, le=64, description="custom: units in one shingle")
    bands: int | None = Field(None, ge=1, le=60, description="custom: bands")
    rows: int | None = Field(None, ge=1, le=128, description="custom: rows in one band")
    permutations: int | None = Field(
        None, ge=1, le=1024, description="custom: permutations in one signature"
    )
    scheme: Literal["affine32", "affine64", "legacy", "fss"] | None = Field(
        None, description="signature scheme [default: the preset's]; fss is the fastest"
    )
    hash: Literal["poly64", "sha1"] | None = Field(
        None, description="base hash of shingles [default: the preset's]"
    )
    verify: Literal["exact", "estimate", "none"] | None = Field(
        None,
        description="what makes a candidate pair a duplicate: exact Jaccard similarity, the "
        "signatures' estimate, or nothing more [default: exact; slimpajama_exact: none]",
    )
    threshold: float = Field(
        0.8, gt=0, le=1, description="Jaccard similarity from which a pair is a duplicate"
    )
    key: str | None = Field(
        None,
        description="a field of `meta` such as url (dots go deeper): documents with the same value "
        "are duplicates too",
    )
    indexes: Paths = Field(
        (),
        description="earlier run directories or indexes, relative to this config: documents that "
        "resemble one kept there are duplicates",
    )
    source_priority: tuple[str, ...] = Field(
        (), description="source labels preferred as representatives, best first"
    )
    max_source_share: Share = Field(
        0.75,
        description="alarm: stop when a larger share of the documents of one source (of 100 and "
        "more) would go as duplicates",
    )
    memory: Bytes = Field(
        1 << 30, ge=16 << 20, description="working memory of one join or verification task"
    )


class DecontaminateConfig(FrozenModel):
    """Documents that hold text of evaluation sets, by runs of words they share."""

    sets: Paths = Field(
        (), description="jsonl files of evaluation items, relative to this config; none: off"
    )
    n: int = Field(13, ge=1, le=64, description="words in a run that a document and an item share")
    min_words: int = Field(
        8, ge=1, le=64, description="shortest run; items with fewer words are listed as not checked"
    )
    min_overlap: Share = Field(
        0.4, description="share of an item's words that a document must hold to count"
    )
    action: Literal["drop", "quarantine", "review", "report"] = Field(
        "drop", description="what follows for such a document; report: evidence only"
    )
    fields: tuple[str, ...] | None = Field(
        None, description="fields that hold an item's text, dotted [default: every string]"
    )

    @model_validator(mode="after")
    def _shortest_fits(self) -> "DecontaminateConfig":
        if self.min_words > self.n:
            raise ValueError(f"expected min_words of at most n ({self.n})")
        return self


class LinesConfig(FrozenModel):
    """Repeated lines or paragraphs: all but the first occurrence are cut before tokenizing."""

    unit: Literal["none", "line", "paragraph"] = Field(
        "none", description="what is compared; paragraphs end at blank lines; none: off"
    )
    min_characters: int = Field(
        40, ge=1, description="normalised characters below which a unit is left alone"
    )
    min_documents: int = Field(
        6, ge=2, description="documents a unit must occur in before it is cut from all but one"
    )
    sources: tuple[str, ...] | None = Field(
        None, description="source labels that are looked at [default: all]; leave code out"
    )


class ScreenConfig(FrozenModel):
    """Provenance screening."""

    policy: Annotated[str, RelativePath()] = Field(
        "builtin:default", description="what follows from evidence: a YAML file, or builtin:default"
    )
    registry: Paths = Field(
        (),
        description="registries of works (`prep registry`), relative to this config, or "
        "builtin:quickstart; none: documents are not compared with works",
    )
    origins: Paths = Field(
        (), description="YAML lists of origins beside the shipped one, relative to this config"
    )
    artefacts: Paths = Field(
        (), description="YAML lists of digests of files and texts, relative to this config"
    )
    optout: Paths = Field(
        (),
        description="captured opt-out signals and local opt-out lists: .yaml or .jsonl files, or "
        "directories of them, relative to this config",
    )
    quarantine_days: int | None = Field(
        None,
        ge=0,
        description="days after which `prep quarantine list` calls the text of a quarantined "
        "document due and `prep quarantine purge` deletes it; no run ever does. none: it is kept",
    )


class TokenizeConfig(FrozenModel):
    """Tokenizing the documents that are kept."""

    tokenizer: Annotated[str, RelativePath(("gpt2",))] = Field(
        "gpt2",
        description="gpt2 (byte-level BPE, 50257 entries), or a tokenizer.json or a directory that "
        "holds one, relative to this config",
    )
    eos: str | int | None = Field(
        None,
        description="token that ends a document, by string or id [default: eos_token of the "
        "tokenizer_config.json beside the tokenizer, or its only special token]",
    )
    special_tokens: tuple[str, ...] = Field(
        (), description="special tokens whose text becomes the token; that of others stays text"
    )


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
    format: Literal["sample", "vsl", "corpus"] = Field(
        "sample",
        description="sample: one stream cut into rows; vsl: whole documents side by side in a row, "
        "none seeing another; corpus: the stream itself, cut when it is read",
    )
    packer: Literal["first_fit", "greedy"] | None = Field(
        None,
        description="vsl: first_fit (decreasing) for the least padding, or greedy, which fills row "
        "after row in stream order [default: first_fit]",
    )

    @model_validator(mode="after")
    def _packer_is_used(self) -> "PackConfig":
        if self.packer is not None and self.format != "vsl":
            raise ValueError(f"expected no packer: format {self.format} has nothing to choose")
        return self


class Hdf5Config(FrozenModel):
    """HDF5 shards."""

    shard_bytes: Bytes = Field(
        128 << 20, ge=1 << 10, le=SHARD_LIMIT, description="bytes of rows in one shard"
    )
    shard_sequences: int | None = Field(
        None, ge=1, description="rows in one shard, instead of shard_bytes; not for corpus"
    )
    compression: Literal["gzip", "gzip-shuffle", "none"] | None = Field(
        None,
        description="filters that plain h5py reads; none: larger, faster to read [default: gzip; "
        "gzip-shuffle for vsl, whose counting channels it makes small]",
    )


class ClusterConfig(FrozenModel):
    """Where tasks run; nothing of it changes the output."""

    address: str | None = Field(
        None,
        description="a running Dask scheduler such as tcp://host:8786, whose workers have this "
        "package and see the same files [default: workers on this machine, see --workers]",
    )


class Config(FrozenModel):
    """A whole preparation."""

    name: Name = Field(description="name of the run; the default output is ./runs/<name>")
    seed: int = Field(1, ge=0, lt=1 << 63, description="seed of splits and shuffles")
    inputs: tuple[InputConfig, ...] = Field(min_length=1, description="collections of raw shards")
    cluster: ClusterConfig = ClusterConfig()
    read: ReadConfig = ReadConfig()
    clean: CleanConfig = CleanConfig()
    dedup: DedupConfig = DedupConfig()
    lines: LinesConfig = LinesConfig()
    screen: ScreenConfig = ScreenConfig()
    filters: FiltersConfig = FiltersConfig()
    decontaminate: DecontaminateConfig = DecontaminateConfig()
    tokenize: TokenizeConfig = TokenizeConfig()
    mixture: MixtureConfig = MixtureConfig()
    pack: PackConfig = PackConfig()
    splits: dict[SplitName, Share] = Field(
        {},
        description="share of documents of every split held out of train, such as {test: 0.1 %}; "
        "validation may be named here or have pack.validation_share",
    )
    hdf5: Hdf5Config = Hdf5Config()

    @field_validator("inputs")
    @classmethod
    def _unique_names(cls, inputs: tuple[InputConfig, ...]) -> tuple[InputConfig, ...]:
        names = [i.name for i in inputs]
        if len(set(names)) < len(names):
            raise ValueError("expected input names that differ from one another")
        return inputs

    @field_validator("inputs")
    @classmethod
    def _one_type_a_column(cls, inputs: tuple[InputConfig, ...]) -> tuple[InputConfig, ...]:
        types: dict[str, str] = {}
        for name, kind in (field for i in inputs for field in i.meta_fields.items()):
            column = column_name(field_path(name))
            if types.setdefault(column, kind) != kind:
                raise ValueError(
                    f"expected one type for a column; meta_fields make {column} both "
                    f"{types[column]} and {kind}"
                )
        return inputs

    @field_validator("splits")
    @classmethod
    def _splits_fit(cls, splits: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        pack = info.data.get("pack")
        if "train" in splits:
            raise ValueError("expected held-out splits only: train is what they leave")
        if len({name.lower() for name in (*splits, "train")}) < len(splits) + 1:
            raise ValueError("expected names that differ by more than upper and lower case")
        if pack is None:
            return splits
        if "validation" in splits and "validation_share" in pack.model_fields_set:
            raise ValueError("validation has its share in pack.validation_share; give it once")
        held_out = {"validation": pack.validation_share, **splits}
        if len(splits) > 250 or sum(held_out.values()) >= 1:
            raise ValueError("expected at most 250 splits, whose shares add up to less than 1")
        return splits

    @field_validator("hdf5")
    @classmethod
    def _shards_fit(cls, hdf5: Hdf5Config, info: ValidationInfo) -> Hdf5Config:
        pack = info.data.get("pack")
        if pack is None or hdf5.shard_sequences is None:
            return hdf5
        if pack.format == "corpus":
            raise ValueError("expected no shard_sequences: a corpus has no rows; use shard_bytes")
        row_bytes = {"sample": 3, "vsl": 5}[pack.format] * 4 * pack.max_sequence_length
        most = SHARD_LIMIT // row_bytes
        if hdf5.shard_sequences > most:
            limit = f"{SHARD_LIMIT >> 20} MiB"
            raise ValueError(f"expected shard_sequences of at most {most} ({limit})")
        return hdf5


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
