"""The config of `prep`: every field typed, documented with its unit, and frozen."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.config.filters import FiltersConfig
from pipeline.config.model import (
    Bytes,
    ConfigSection,
    FrozenModel,
    RelativePath,
    Share,
    Unit,
    parse,
)
from pipeline.config.sections import (
    InputConfig,
    Keep,
    MixtureConfig,
    Name,
    column_name,
    field_path,
)
from pipeline.config.signals import SignalsConfig
from pipeline.config.yaml import YamlDocument, load_yaml
from pipeline.core.shipped import find_config

SHARD_LIMIT = 256 << 20
"""Bytes of rows that one HDF5 shard may hold: it is built in memory."""

Paths = Annotated[tuple[str, ...], RelativePath()]
SplitName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]


class ReadConfig(ConfigSection):
    """Reading raw shards."""

    task_bytes: Bytes = Field(32 << 20, ge=1 << 10)
    """bytes of text in one task: small files are put together by their estimated size, a larger
    file is cut into parts"""
    max_document_bytes: Bytes = Field(64 << 20, ge=1)
    """largest record in bytes, as read; a larger one is a bad record"""
    max_file_bytes: Bytes = Field(1 << 40, ge=1)
    """largest raw shard in bytes, decompressed; a larger one counts as damaged"""
    max_ratio: float = Field(250.0, ge=1)
    """most decompressed bytes per byte of a raw shard, checked from 256 MiB on; a shard with more
    counts as damaged"""
    on_bad_record: Literal["drop", "fail"] = "drop"
    """drop: bad records are dropped and counted; fail: a shard that holds one counts as damaged"""
    on_bad_shard: Literal["fail", "skip"] = "fail"
    """fail: the run names all damaged shards and stops; skip: they are left out and counted"""
    max_bad_share: Share = 0.01
    """largest share of bad records; with more, the run stops"""


class FtfyConfig(ConfigSection):
    """The steps of ftfy, with its own names and defaults, but for NFC; with any other value lines
    with more than plain ASCII may take longer."""

    unescape_html: Literal["auto"] | bool = "auto"
    """turn HTML entities into characters; auto: up to the first line with a <"""
    remove_terminal_escapes: bool = True
    """drop the escapes by which terminals change colours"""
    fix_encoding: bool = True
    """repair mojibake"""
    restore_byte_a0: bool = True
    """with fix_encoding: take a space within mojibake for the byte A0"""
    replace_lossy_sequences: bool = True
    """with fix_encoding: repair mojibake that has lost characters, as far as it can be"""
    decode_inconsistent_utf8: bool = True
    """with fix_encoding: repair mojibake that is mixed with text in another encoding"""
    fix_c1_controls: bool = True
    """read C1 control characters as Windows-1252"""
    fix_latin_ligatures: bool = True
    """write ligatures such as U+FB01 as single letters"""
    fix_character_width: bool = True
    """write full-width Latin and half-width kana in their usual width"""
    uncurl_quotes: bool = True
    """write curly quotes as straight ones"""
    fix_line_breaks: bool = True
    """write all line breaks as line feeds"""
    fix_surrogates: bool = True
    """put surrogate pairs together, replace single ones"""
    remove_control_chars: bool = True
    """drop control characters, byte order marks and the like"""
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = "NFC"
    """the Unicode normal form; null leaves the text in its own"""


class CleanConfig(ConfigSection):
    """Cleaning text: ftfy with NFC, then SlimPajama's low-length filter."""

    min_length: int = Field(200, ge=0)
    """fewest characters of a document, counted after lower-casing, dropping ASCII punctuation and
    collapsing white space; shorter documents are dropped"""
    fix_text: bool = True
    """repair mojibake and the like with ftfy; false leaves the text as it is"""
    ftfy: FtfyConfig = FtfyConfig()
    """what ftfy does"""
    mask: tuple[Literal["email", "ip", "phone"], ...] = ()
    """what is masked in the text: email, ip, phone (needs the extra `pii`)"""
    phone_regions: tuple[str, ...] = ()
    """countries, such as US, whose phone numbers are also found without a country code"""

    @property
    def ftfy_options(self) -> dict[str, str | bool | None]:
        """What differs from the defaults."""
        return self.ftfy.model_dump(exclude_defaults=True)

    @model_validator(mode="after")
    def _ftfy_is_used(self) -> "CleanConfig":
        if self.ftfy_options and not self.fix_text:
            raise ValueError(
                "expected no options of ftfy with fix_text: false, which leaves it out"
            )
        return self


Preferred = Annotated[
    str, Field(pattern=r"^(longest|shortest|first|last|(newest|oldest|highest|lowest) +[^ ].*)$")
]
"""An order of duplicates."""


class SubstringsConfig(ConfigSection):
    """Passages that occur more than once, in one document or several: all but the first occurrence
    are cut."""

    cut: bool = False
    """whether repeated passages are cut"""
    min_bytes: int = Field(200, ge=50, le=1 << 16)
    """shortest passage, in bytes of UTF-8; 200 are about the 50 tokens of Lee et al. (2022)"""
    sources: tuple[str, ...] | None = None
    """source labels that are searched for repeats [default: all]; leave out sources of code"""


class ContainmentConfig(ConfigSection):
    """Documents that a longer one contains: most of their shingles are in its text, too."""

    drop: bool = False
    """whether contained documents are removed, as duplicates of the longer one"""
    min_share: Annotated[Share, Field(ge=0.5)] = 0.9
    """least share of a document's distinct shingles that the longer one must have"""


class DedupConfig(ConfigSection):
    """Duplicate removal. A preset fixes shingles, bands and signature scheme; `custom` takes the
    keys from `unit` to `permutations`, which other presets refuse."""

    preset: Literal[
        "slimpajama", "slimpajama_exact", "fineweb", "strict", "custom", "exact", "none"
    ] = "slimpajama"
    """how near-duplicates are found by MinHash LSH; exact: only documents with the same normalised
    text are duplicates; none: nothing is removed"""
    unit: Literal["char", "word"] | None = None
    """only with preset custom: unit of a shingle"""
    size: int | None = Field(None, ge=1, le=64)
    """only with preset custom: units in one shingle"""
    bands: int | None = Field(None, ge=1, le=60)
    """only with preset custom: number of bands"""
    rows: int | None = Field(None, ge=1, le=128)
    """only with preset custom: rows in one band"""
    permutations: int | None = Field(None, ge=1, le=1024)
    """only with preset custom: permutations in one signature"""
    scheme: Literal["affine32", "affine64", "legacy", "fss"] | None = None
    """signature scheme [default: the preset's]; fss is the fastest"""
    hash: Literal["poly64", "sha1"] | None = None
    """base hash of shingles [default: the preset's]"""
    verify: Literal["exact", "estimate", "none"] | None = None
    """what makes a candidate pair a duplicate: exact Jaccard similarity, the signatures' estimate,
    or nothing more [default: exact; slimpajama_exact: none]"""
    threshold: float = Field(0.8, gt=0, le=1)
    """lowest Jaccard similarity at which two documents are duplicates"""
    key: str | None = None
    """a field of `meta` such as url (dots reach nested fields): documents with the same value are
    duplicates too"""
    indexes: Paths = ()
    """earlier run directories or indexes, relative to this config or in a bucket: documents that
    resemble a document kept there, or are part of one (containment), are duplicates"""
    source_priority: tuple[str, ...] = ()
    """source labels in order of preference: among duplicates, a document of an earlier label is
    preferred"""
    prefer: tuple[Preferred, ...] = Field((), max_length=4)
    """which of duplicates stays, after source_priority, in order: longest, shortest, first, last
    (of the inputs), newest FIELD, oldest FIELD, highest FIELD, lowest FIELD, of a dotted field of
    `meta` such as date [default: by document key, which is as good as random]"""
    max_source_share: Share = 0.75
    """stop when a larger share of one source's documents would be removed as duplicates; sources
    with fewer than 100 documents are not checked"""
    memory: Bytes = Field(1 << 30, ge=16 << 20)
    """working memory of one join or verification task"""
    containment: ContainmentConfig = ContainmentConfig()
    substrings: SubstringsConfig = SubstringsConfig()


class DecontaminateConfig(ConfigSection):
    """Documents that hold text of evaluation sets, by runs of words they share."""

    sets: Paths = ()
    """jsonl files of evaluation items, relative to this config; none: off"""
    n: int = Field(13, ge=1, le=64)
    """words in a run that a document and an item must share"""
    min_words: int = Field(8, ge=1, le=64)
    """shortest run; items with fewer words are listed as not checked"""
    min_overlap: Share = 0.4
    """share of an item's words that a document must hold to count"""
    action: Literal["drop", "quarantine", "review", "report"] = "drop"
    """what happens to such a document; report: it stays and only evidence is recorded"""
    fields: tuple[str, ...] | None = None
    """fields that hold an item's text; dots reach nested fields [default: every string]"""

    @model_validator(mode="after")
    def _shortest_fits(self) -> "DecontaminateConfig":
        if self.min_words > self.n:
            raise ValueError(f"expected min_words of at most n ({self.n})")
        return self


class LinesConfig(ConfigSection):
    """Repeated lines or paragraphs: all but the first occurrence are cut before tokenizing."""

    unit: Literal["none", "line", "paragraph"] = "none"
    """what is compared; paragraphs end at blank lines; none: off"""
    min_characters: int = Field(40, ge=1)
    """units with fewer normalised characters are left alone"""
    min_documents: int = Field(6, ge=2)
    """a unit that occurs in at least this many documents is cut from all but one of them"""
    sources: tuple[str, ...] | None = None
    """source labels that are searched for repeats [default: all]; leave out sources of code"""


class DetectorConfig(ConfigSection):
    """A detector of an installed package."""

    name: str = Field(min_length=1)
    """its name: an entry point of the group wafermill.detectors"""
    settings: dict[str, JsonValue] = Field({})
    """what it is made with, by keyword: plain values, lists and mappings"""


class ScreenConfig(ConfigSection):
    """Provenance screening."""

    policy: Annotated[str, RelativePath()] = "builtin:default"
    """the policy, which decides what follows from evidence: a YAML file, builtin:default, or
    builtin:allow, which allows everything"""
    registry: Paths = ()
    """registries of works (`prep registry`), relative to this config, or builtin:quickstart; none:
    documents are not compared with works"""
    origins: Paths = ()
    """YAML lists of origins in addition to the shipped one, relative to this config"""
    artefacts: Paths = ()
    """YAML lists of digests of files and texts, relative to this config"""
    optout: Paths = ()
    """captured opt-out signals and local opt-out lists: .yaml or .jsonl files, or directories of
    them, relative to this config"""
    detectors: tuple[DetectorConfig, ...] = ()
    """detectors of installed packages, in the order of their evidence; one that a rule of the
    policy asks about need not be named"""
    quarantine_days: int | None = Field(None, ge=0)
    """days after which `prep quarantine list` reports the text of a quarantined document as due and
    `prep quarantine purge` deletes it (a run never does); none: it is kept"""


class FimConfig(ConfigSection):
    """Fill-in-the-middle: documents of train whose middle is moved to the end."""

    rate: Annotated[Share, Unit("share of documents")] = 0.0
    """share of the documents that are rearranged, such as 0.5; 0: off"""
    spm_rate: Annotated[Share, Unit("share of these")] = 0.5
    """share of these whose suffix comes first (SPM); the others begin with their prefix (PSM)"""
    max_characters: Annotated[int | None, Unit("characters")] = Field(None, ge=1)
    """longest text that is rearranged, so that all three parts fit in a row [default: of any
    length]"""
    prefix: str = "<fim_prefix>"
    """special token in front of what is before the middle"""
    middle: str = "<fim_middle>"
    """special token in front of the middle"""
    suffix: str = "<fim_suffix>"
    """special token in front of what is behind the middle"""


class TokenizeConfig(ConfigSection):
    """Tokenizing the documents that are kept."""

    tokenizer: Annotated[str, RelativePath(("gpt2",))] = "gpt2"
    """gpt2 (byte-level BPE, 50257 entries), or a tokenizer.json or a directory that holds one,
    relative to this config"""
    eos: str | int | None = None
    """token that ends a document, by string or id [default: eos_token of the tokenizer_config.json
    next to the tokenizer, or its only special token]"""
    bos: str | int | Literal[False] | None = None
    """token that begins a document, by string or id, or false for none [default: what the tokenizer
    itself puts before a text]"""
    special_tokens: tuple[str, ...] = ()
    """special tokens that are recognised where their text occurs; the text of all others stays
    text"""
    engine: str | None = None
    """the engine: fastokens, gigatoken, tokenizers or that of a plug-in; one that gives other ids
    than tokenizers is refused [default: the fastest of the first three that does not]"""
    fim: FimConfig = FimConfig()


class PackConfig(ConfigSection):
    """Shuffling, splitting and packing."""

    max_sequence_length: int = Field(2048, ge=2, le=1 << 17)
    """tokens in one row (MSL)"""
    validation_share: Share = 0.0017
    """share of documents held out for validation"""
    bucket_tokens: int = Field(1 << 25, ge=1 << 10)
    """tokens in one shuffle bucket, which one task holds in memory"""
    format: Literal["sample", "vsl", "corpus"] = "sample"
    """sample: one stream cut into rows; vsl: whole documents next to each other in a row, where
    none attends to another; corpus: the stream itself, cut when it is read"""
    packer: Literal["first_fit", "greedy"] | None = None
    """vsl: first_fit (decreasing) for the least padding, or greedy, which fills row after row in
    stream order [default: first_fit]"""
    append: bool = False
    """true: a finished data set stays as it is, and inputs that are new become another generation
    of rows next to it; a change that would alter what is there is an error"""

    @model_validator(mode="after")
    def _packer_is_used(self) -> "PackConfig":
        if self.packer is not None and self.format != "vsl":
            raise ValueError(
                f"expected no packer: there is none to choose with format {self.format}"
            )
        return self


class Hdf5Config(ConfigSection):
    """HDF5 shards."""

    shard_bytes: Bytes = Field(128 << 20, ge=1 << 10, le=SHARD_LIMIT)
    """bytes of rows in one shard"""
    shard_sequences: int | None = Field(None, ge=1)
    """rows in one shard, instead of shard_bytes; not for corpus"""
    compression: Literal["gzip", "gzip-shuffle", "none"] | None = None
    """compression of the shards, which plain h5py reads; none: larger, but faster to read [default:
    gzip; gzip-shuffle for vsl, whose channels of counts it makes small]"""


class Config(ConfigSection):
    """A whole preparation."""

    name: Name
    """name of the run; the default output is ./runs/<name>"""
    seed: int = Field(1, ge=0, lt=1 << 63)
    """seed of splits and shuffles"""
    inputs: tuple[InputConfig, ...] = Field(min_length=1)
    """collections of raw shards"""
    keep: Keep = "all"
    """intermediates that stay: `all`; `lineage` deletes them when the run is finished, as `prep
    clean-up` does; `minimal` each as soon as no later stage reads it, and tokens too, so that a
    changed setting makes more again and `prep repack` needs another run"""
    cluster: Cluster = LOCAL
    """where tasks run, by its `kind`; nothing of it changes the output"""
    read: ReadConfig = ReadConfig()
    clean: CleanConfig = CleanConfig()
    dedup: DedupConfig = DedupConfig()
    lines: LinesConfig = LinesConfig()
    screen: ScreenConfig = ScreenConfig()
    signals: SignalsConfig = SignalsConfig()
    filters: FiltersConfig = FiltersConfig()
    decontaminate: DecontaminateConfig = DecontaminateConfig()
    tokenize: TokenizeConfig = TokenizeConfig()
    mixture: MixtureConfig = MixtureConfig()
    pack: PackConfig = PackConfig()
    splits: dict[SplitName, Share] = Field({})
    """splits held out of train, each with its share of the documents, such as {test: 0.1 %};
    validation gets its share here or from pack.validation_share"""
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

    @field_validator("mixture")
    @classmethod
    def _clusters_are_found(cls, mixture: MixtureConfig, info: ValidationInfo) -> MixtureConfig:
        dedup = info.data.get("dedup")
        if mixture.cluster_weights is not None and dedup and dedup.preset == "none":
            raise ValueError(
                "expected no cluster_weights: dedup.preset is none, so no duplicates are looked for"
            )
        return mixture

    @field_validator("splits")
    @classmethod
    def _splits_fit(cls, splits: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        pack = info.data.get("pack")
        if "train" in splits:
            raise ValueError("expected held-out splits only: train gets the remaining documents")
        if len({name.lower() for name in (*splits, "train")}) < len(splits) + 1:
            raise ValueError("expected names that differ by more than upper and lower case")
        if pack is None:
            return splits
        if "validation" in splits and "validation_share" in pack.model_fields_set:
            raise ValueError(
                "validation already has a share from pack.validation_share; give it only once"
            )
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


ConfigLike = str | os.PathLike[str] | Mapping[str, Any] | Config
"""A config as callers give it: a file, the name of a shipped one, what a file would hold, or it."""


def load_config(config: ConfigLike | LoadedConfig, overrides: tuple[str, ...] = ()) -> LoadedConfig:
    """Read and check a config: a path, the bare name of a shipped one such as `quickstart`, a
    mapping as a file would hold it, or a config. Relative paths of a mapping start at the working
    directory.

    Raises ConfigError with one line naming file, line, key, what was expected and a did-you-mean.
    """
    if isinstance(config, Config):
        config = LoadedConfig(config=config, base=Path.cwd())
    if isinstance(config, LoadedConfig):
        if not overrides:
            return config
        value = config.config.model_dump(mode="json", exclude_unset=True)
        return _of_mapping(value, config.base, overrides)
    if isinstance(config, Mapping):
        return _of_mapping(config, Path.cwd(), overrides)
    path = find_config("prep", Path(config))
    loaded = load_yaml(path)
    if isinstance(loaded.value, dict):
        loaded.value.setdefault("name", path.stem)
    return LoadedConfig(config=parse(Config, loaded, overrides), base=path.resolve().parent)


def _of_mapping(value: Mapping[str, Any], base: Path, overrides: tuple[str, ...]) -> LoadedConfig:
    document = YamlDocument.of_mapping("config", value)
    return LoadedConfig(config=parse(Config, document, overrides), base=base)
