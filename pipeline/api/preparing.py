"""`pipeline.run`, `plan`, `clean`, `dedup`: a whole preparation, what it would do, or one step
alone; and texts cleaned and tokenized in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, overload

import pyarrow as pa
from pydantic import BaseModel

from pipeline.api import (
    AnyPath,
    list_names,
    local_path_or_none,
    run_path,
    run_path_or_none,
)
from pipeline.cleaning import clean_array
from pipeline.config.model import parse
from pipeline.config.prep import ConfigLike, DedupConfig, ReadConfig, load_config
from pipeline.config.sections import InputConfig
from pipeline.config.yaml import YamlDocument
from pipeline.core.words import require_choice
from pipeline.engine.progress import Progress
from pipeline.sources.output_format import choose_form
from pipeline.stories.clean import CleaningOptions, clean_settings, make_clean_story
from pipeline.stories.dedup import DEDUP, NAME, make_dedup_config
from pipeline.stories.generations import plan_preparation
from pipeline.stories.loop import Manifest
from pipeline.stories.plan import StageForecast, Total, forecast_stages, sum_stages
from pipeline.stories.run import run_preparation
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer
from pipeline.tokenizers.engine import tokenize_array as tokenize


@dataclass(frozen=True)
class Plan:
    """What `run` would do.

    directory: the run directory.
    stages: for each, whether it is reused or why it runs, CPU seconds, and bytes of disk and
        memory.
    total: of all stages.
    notes: lines on the inputs.
    """

    directory: Path
    stages: tuple[StageForecast, ...]
    total: Total
    notes: tuple[str, ...]


def run(
    config: ConfigLike,
    out: AnyPath | None = None,
    workers: int | None = None,
    *,
    overrides: Sequence[str] = (),
    verify_inputs: bool = False,
    replace: bool = False,
    progress: bool = False,
) -> Manifest:
    """Prepare data, as `prep run`: finished work is reused, and an interrupted run resumes.

    config: a YAML file, the name of a shipped config such as `quickstart`, a mapping with the keys
        of such a file, or a `Config`. Relative paths start at the file, in a mapping or a `Config`
        at the working directory.
    out: the run directory, or its URL in a bucket; by default ./runs/NAME, with the name in the
        config.
    workers: worker processes; 0 runs all in this process; by default as the size of the input asks.
        The output is the same for any number.
    overrides: values over those of the config, such as `pack.max_sequence_length=1024`.
    verify_inputs: hash the raw shards again, even if size and time of modification are unchanged.
    replace: with `pack.append`: make the whole data set again, all inputs as one generation.
    progress: report stages on standard error.

    Returns the finished run: its directory, the manifest of every stage, and the stages that were
    reused. Raises ConfigError, InputError for raw data, IntegrityError for a run that does not
    balance, ResourceError for disk, memory, a lock that is held or workers that die.
    """
    loaded = load_config(config, tuple(overrides))
    return run_preparation(
        loaded,
        run_path_or_none(out),
        workers,
        verify_inputs=verify_inputs,
        progress=Progress(quiet=not progress),
        replace_generations=replace,
    )


def plan(
    config: ConfigLike,
    out: AnyPath | None = None,
    *,
    overrides: Sequence[str] = (),
) -> Plan:
    """Check a config and forecast a run of it, as `prep plan`; the run directory is not written to.

    config: as for `run`.
    out: the run directory that would be written; by default ./runs/NAME.
    overrides: values over those of the config, such as `dedup.preset=none`.

    Returns the stages, each with its state, CPU seconds and bytes of disk and memory. Raises
    ConfigError, and InputError for raw data that is not there.
    """
    loaded = load_config(config, tuple(overrides))
    prepared = plan_preparation(loaded, run_path_or_none(out))
    stages = tuple(forecast_stages(prepared))
    return Plan(prepared.out, stages, sum_stages(stages, prepared), tuple(prepared.plan.notes))


Model = TypeVar("Model", bound=BaseModel)
DedupPreset = Literal["slimpajama", "slimpajama_exact", "fineweb", "strict", "exact"]
Verification = Literal["exact", "estimate", "none"]


def clean(
    files: AnyPath | Sequence[AnyPath] = (),
    *,
    out: AnyPath,
    config: ConfigLike | None = None,
    min_length: int | None = None,
    fix_text: bool | None = None,
    mask: str | Sequence[str] | None = None,
    language: str | Sequence[str] | None = None,
    gopher: bool = False,
    gopher_repetition: bool = False,
    c4: bool = False,
    bad_words: AnyPath | None = None,
    text_key: str | None = None,
    format: str = "jsonl.zst",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    progress: bool = False,
) -> Manifest:
    """Repair the text of records and drop those that rules refuse, as `prep clean`.

    files: files, directories, globs or URLs; by default the inputs of `config`.
    out: the run directory, or its URL in a bucket; the records go to OUT/cleaned.
    config: as for `run`; its sections read, clean and filters apply.
    min_length: drop documents with fewer characters; by default 200.
    fix_text: repair text with ftfy and normalise it to NFC; by default True.
    mask: what to mask, of `email`, `ip` and `phone`.
    language: codes of the languages to keep, such as `en`.
    gopher, gopher_repetition, c4: apply these rules for documents.
    bad_words: a list of words; with `c4`, documents with one are dropped.
    text_key: the field or column that holds the text.
    format: of the records that are written.
    overrides: values over those of the config, such as `filters.gopher.min_words=20`.
    workers: worker processes; 0 runs all in this process; by default as the size asks.
    progress: report stages on standard error.

    Returns the finished run. Raises ConfigError, InputError for raw data, ResourceError.
    """
    options = CleaningOptions(
        min_length=min_length,
        fix_text=fix_text,
        mask=_join_names(mask),
        language=_join_names(language),
        gopher=gopher,
        gopher_repetition=gopher_repetition,
        c4=c4,
        bad_words=local_path_or_none(bad_words),
        text_key=text_key,
    )
    loaded = clean_settings(config, list_names(files), options, tuple(overrides))
    reporter, story = Progress(quiet=not progress), make_clean_story(choose_form(format, "format"))
    return run_preparation(loaded, run_path(out), workers, progress=reporter, story=story)


def dedup(
    files: AnyPath | Sequence[AnyPath],
    *,
    out: AnyPath,
    preset: DedupPreset = "slimpajama",
    verify: Verification | None = None,
    threshold: float = 0.8,
    text_key: str = "text",
    key: str | None = None,
    index: AnyPath | Sequence[AnyPath] = (),
    name: str | None = None,
    memory: int | str = "1 GiB",
    max_source_share: float | str = 0.75,
    max_bad_share: float | str = 0.01,
    workers: int | None = None,
    progress: bool = False,
) -> Manifest:
    """Copy records without their duplicates, byte for byte, as `prep dedup`.

    files: files, directories or globs: .jsonl, .jsonl.zst, .jsonl.gz or .parquet.
    out: the run directory, or its URL in a bucket; the kept records go to OUT/records.
    preset: how near-duplicates are found.
    verify: how candidate pairs are checked; by default `exact`, with slimpajama_exact `none`.
    threshold: Jaccard similarity from which on a pair counts, above 0 and at most 1.
    text_key: the field or column that holds the text.
    key: a field of `meta` such as url; documents with the same value are duplicates too.
    index: indexes, or run directories of earlier calls, to compare with.
    name: part of every document's key, and the source of documents that state none.
    memory: bytes of working memory of one task, or a text such as `1 GiB`.
    max_source_share: stop if a larger share of a source, 0 to 1, would be removed.
    max_bad_share: stop if a larger share of records, 0 to 1, cannot be decoded.
    workers: worker processes; 0 runs all in this process; by default as the size asks.
    progress: report stages on standard error.

    Returns the finished run. Raises ConfigError, InputError for raw data, or where a source would
    lose more than its share, ResourceError.
    """
    require_choice("preset", preset, get_args(DedupPreset))
    rules = _validate_section(
        DedupConfig,
        preset=preset,
        verify=verify,
        threshold=threshold,
        key=key,
        indexes=list_names(index),
        memory=memory,
        max_source_share=max_source_share,
    )
    reading = _validate_section(ReadConfig, max_bad_share=max_bad_share)
    input_name = NAME if name is None else _validate_section(InputConfig, name=name, path="").name
    loaded = make_dedup_config(
        list_names(files), rules, name=input_name, text_key=text_key, read=reading
    )
    return run_preparation(
        loaded, run_path(out), workers, progress=Progress(quiet=not progress), story=DEDUP
    )


def _validate_section(model: type[Model], **values: Any) -> Model:
    """A section of a config. Raises ConfigError naming the option that is wrong."""
    return parse(model, YamlDocument.of_mapping("dedup", values))


def _join_names(names: str | Sequence[str] | None) -> str | None:
    """Names as the command line has them: with commas."""
    return names if names is None or isinstance(names, str) else ",".join(names)


@overload
def clean_texts(texts: list[str] | tuple[str, ...]) -> list[str]: ...
@overload
def clean_texts(texts: pa.Array | pa.ChunkedArray) -> pa.Array: ...
def clean_texts(texts: Any) -> Any:
    """`ftfy.fix_text(text, normalization="NFC")` of every text, in the same order.

    texts: a list or tuple of `str`, or an Arrow array of strings.

    Returns a list of `str`; for an Arrow array, an Arrow array of the same type. Raises TypeError
    or `pyarrow.ArrowException` for what is no text.
    """
    cleaned = clean_array(texts)
    return cleaned.cast(texts.type) if hasattr(texts, "type") else cleaned.to_pylist()


def tokenize_texts(
    texts: Sequence[str] | pa.Array | pa.ChunkedArray, tokenizer: str | Any = "gpt2"
) -> pa.Array:
    """Token ids of every text, in the same order, without BOS and EOS; special tokens in text stay
    text.

    texts: `str`s or an Arrow array of strings.
    tokenizer: `gpt2`, the path of a tokenizer.json, or what
        `pipeline.tokenizers.engine.open_tokenizer` returned.

    Returns a large list array of uint32, whose ids are those of `tokenizers`. Raises ConfigError
    for a tokenizer that is not there or cannot be used.
    """
    opened = tokenizer if isinstance(tokenizer, TextTokenizer) else open_tokenizer(tokenizer)
    array = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.string())
    return tokenize(array, opened)
