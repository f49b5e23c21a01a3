"""Options and inputs become a source and a target, and with --dry-run an estimate of what would be
read and written; nothing is written yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config.sections import parse_template
from pipeline.convert.documents import (
    Detokenizer,
    DocumentTarget,
    DocumentWriter,
    Jsonl,
    Parquet,
    Plugged,
    TokenLists,
    load_detokenizer,
)
from pipeline.convert.flat import BinSource, BinTarget, id_limit
from pipeline.convert.hdf5 import (
    CorpusSource,
    Hdf5Files,
    RowSource,
    UnpackedSource,
    hdf5_files,
)
from pipeline.convert.options import (
    DEFAULT_LENGTH,
    DEFAULT_SHARD,
    ROWS,
    ConvertInputs,
    ConvertOptions,
    detect_inputs,
    open_saved,
    refuse_cluster,
)
from pipeline.convert.pack import CorpusTarget, RowTarget, SampleTarget, ShardPlace
from pipeline.convert.stream import (
    Ends,
    StreamSource,
    StreamVocabulary,
    Target,
    describe_vocabulary,
)
from pipeline.convert.texts import RunSource, TextSource, Tokenizing, open_run_source
from pipeline.convert.token_rows import ROW_FORMS, RowShards, SavedTokenSource, TokenListSource
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.journal import DIRECTORY
from pipeline.engine.executor import executor
from pipeline.engine.progress import Progress
from pipeline.sources.files import describe_passed_over, find
from pipeline.sources.output_format import OTHER_TARGETS, Form, PluggedForm, choose_form
from pipeline.sources.record import RecordRules
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition

_MAX_DOCUMENT_BYTES = 64 << 20
_MAX_FILE_BYTES = 1 << 40
_MAX_RATIO = 250.0
_BIN_PART = 64 << 20
_NANOGPT = {"validation": "val"}
"""Names of splits that nanoGPT's scripts call otherwise."""


@dataclass(frozen=True)
class ConvertPlan:
    """A conversion that could begin."""

    source: StreamSource
    target: Callable[[ShardPlace], Target]
    settings: Mapping[str, Any]
    """What the bytes of the output depend on, beside the input."""
    notes: tuple[str, ...] = ()
    lossy: bool = False


def choose_plan(options: ConvertOptions) -> ConvertPlan:
    """Look at the inputs and choose. Raises ConfigError and InputError."""
    return replace(_choose_plan(options), lossy=options.lossy)


def _choose_plan(options: ConvertOptions) -> ConvertPlan:
    inputs = detect_inputs(options.inputs, options.kind, options.text_key)
    if inputs.kind == "text":
        return _from_text(options)
    refuse_cluster(options, inputs.kind)
    if inputs.kind == "run":
        return _from_run(options, _open_run(inputs, options.split))
    if inputs.kind == "hdf5":
        return _from_hdf5(options, hdf5_files(list(inputs.paths)))
    limit = id_limit(inputs.paths[0]) if inputs.kind == "bin" else None
    vocabulary = _vocabulary(options, None, None, limit)
    ends = Ends(vocabulary.eos_id, options.lossy, options.add_eos)
    return _stream(options, _token_source(inputs, vocabulary, ends))


def splits_to_convert(options: ConvertOptions) -> tuple[str, ...]:
    """The splits of a run that are converted each on its own, into a directory of its name; none
    for other inputs, and for `bin`, where each is a pair of files."""
    inputs = detect_inputs(options.inputs, options.kind, options.text_key)
    return () if inputs.kind != "run" or options.to == "bin" else tuple(_open_run(inputs).tokens)


def _open_run(inputs: ConvertInputs, split: str | None = None) -> RunSource:
    if len(inputs.paths) > 1:
        raise ConfigError("prep runs: convert one at a time")
    return open_run_source(inputs.paths[0], split)


def _from_run(options: ConvertOptions, source: RunSource) -> ConvertPlan:
    for option, value in (
        ("--tokenizer", options.tokenizer),
        ("--eos", options.eos),
        ("--bos", options.bos),
        ("--eos-id", options.eos_id),
    ):
        if value is not None:
            raise ConfigError(f"{option}: a prep run has its own tokenizer; leave it out")
    if options.to in ROWS and options.length is None:
        options = replace(options, length=source.row_length)
    plan = _stream(options, source)
    if options.to != "bin":
        return replace(plan, settings={**plan.settings, "split": options.split})
    vocabulary = source.facts.vocabulary
    outputs = {_NANOGPT.get(name, name): count for name, count in source.tokens.items()}
    part = _BIN_PART // vocabulary.dtype.itemsize
    return replace(
        plan,
        target=lambda place: BinTarget(part, vocabulary, place, outputs),
        settings={**plan.settings, "outputs": outputs},
    )


def _token_source(inputs: ConvertInputs, vocabulary: StreamVocabulary, ends: Ends) -> StreamSource:
    if inputs.kind == "bin":
        return BinSource(inputs.paths, vocabulary, ends)
    if inputs.kind == "tokens":
        return TokenListSource(inputs.paths, vocabulary, ends)
    if len(inputs.paths) > 1:
        raise ConfigError("saved datasets: convert one at a time")
    return SavedTokenSource(inputs.paths[0], open_saved(inputs.paths[0]), vocabulary, ends)


def _from_text(options: ConvertOptions) -> ConvertPlan:
    tokenizer = _load(options)
    files, passed = find("input", list(options.inputs), Path(), options.input_format)
    template = None if options.template is None else parse_template(options.template)
    rules = RecordRules(
        text_key=options.text_key,
        max_document_bytes=_MAX_DOCUMENT_BYTES,
        sources=None,
        template=template,
        fields=(),
        max_file_bytes=_MAX_FILE_BYTES,
        max_ratio=_MAX_RATIO,
    )
    size = sum(file.text_estimate for file in files)
    cluster, out = options.cluster.model_dump(), options.out.absolute()
    start = partial(executor, options.workers, size, cluster, out, Progress().note)
    tokenizing = Tokenizing(start, out / DIRECTORY / "tokenizer")
    source = TextSource(files, rules, tokenizer, tokenizing, options.lossy)
    notes = describe_passed_over(passed)
    return _stream(options, source, notes)


def _from_hdf5(options: ConvertOptions, files: Hdf5Files) -> ConvertPlan:
    limit = 1 << 16 if files.dtype.itemsize == 2 else None
    eos_id, vocab_size = files.number("eos_id"), files.number("vocab_size")
    vocabulary = _vocabulary(options, eos_id, vocab_size, limit, files.number("bos_id"))
    recorded = files.params.get("tokenizer_hash")
    tokenizer = vocabulary.tokenizer
    if tokenizer is not None and recorded is not None and recorded != tokenizer.content_hash:
        raise ConfigError(
            f"{files.paths[0].parent}: made with another tokenizer than {tokenizer.name}; name the "
            "right one with --tokenizer"
        )
    if files.layout == "corpus":
        return _stream(options, CorpusSource(files, vocabulary))
    if options.to == "hdf5" and options.length in (None, files.shape[2]):
        return _rows(options, files, vocabulary)
    return _stream(options, UnpackedSource(files, vocabulary, options.lossy))


def _rows(options: ConvertOptions, files: Hdf5Files, vocabulary: StreamVocabulary) -> ConvertPlan:
    _, channels, length = files.shape
    per_shard = options.samples_per_file or _per_shard(options, channels * length * 4)
    params = dict(files.params) or {
        "features": list(files.features),
        "max_sequence_length": length,
    }
    note = f"rows are copied as they are (MSL {length}), mask and all"
    settings = {"to": "rows", "items_per_file": per_shard, "compression": options.compression}
    return ConvertPlan(
        RowSource(files, vocabulary),
        lambda place: RowTarget(
            per_shard=per_shard, params=params, compression=options.compression, place=place
        ),
        settings,
        (note,),
    )


def _per_shard(options: ConvertOptions, item_bytes: int) -> int:
    return max(1, (options.shard_size or DEFAULT_SHARD) // item_bytes)


def _vocabulary(
    options: ConvertOptions,
    eos_id: int | None,
    vocab_size: int | None,
    limit: int | None,
    bos_id: int | None = None,
) -> StreamVocabulary:
    """What the options say of the ids, checked against what the data set says of itself; `limit` is
    the number of ids that its dtype can hold, if that is few."""
    to_text = options.to not in OTHER_TARGETS
    if options.eos_id is not None:
        eos_id = options.eos_id
    is_complete = eos_id is not None and (vocab_size is not None or options.eos_id is not None)
    if options.tokenizer is None and is_complete and not to_text:
        assert eos_id is not None
        return StreamVocabulary(eos_id, vocab_size or limit or 1 << 31, bos_id=bos_id)
    tokenizer = _load(options)
    _check_same(tokenizer, eos_id, vocab_size, options.tokenizer is not None)
    if bos_id is not None and bos_id != tokenizer.bos_id:
        raise ConfigError(
            f"the input begins documents with id {bos_id}, {tokenizer.name} with "
            f"{'none' if tokenizer.bos_id is None else tokenizer.bos_id}; --bos names its token"
        )
    return describe_vocabulary(tokenizer)


def _load(options: ConvertOptions) -> TokenizerDefinition:
    bos = False if options.bos == "none" else options.bos
    return load_definition(options.tokenizer or GPT2, options.eos, bos=bos)


def _check_same(
    tokenizer: TokenizerDefinition, eos_id: int | None, vocab_size: int | None, is_named: bool
) -> None:
    hint = "" if is_named else "; --tokenizer names the one it was made with"
    if eos_id is not None and eos_id != tokenizer.eos_id:
        raise ConfigError(
            (
                f"the input ends documents with id {eos_id}, but {tokenizer.name} with "
                f"{tokenizer.eos_id}"
            )
            + (hint or "; --eos names its token")
        )
    if vocab_size is not None and vocab_size > tokenizer.vocab_size:
        raise ConfigError(
            f"the input has a vocabulary of {vocab_size:,} ids, but {tokenizer.name} has "
            f"{tokenizer.vocab_size:,}{hint}"
        )


def _stream(
    options: ConvertOptions, source: StreamSource, notes: tuple[str, ...] = ()
) -> ConvertPlan:
    """A plan for a source of tokens."""
    vocabulary = source.facts.vocabulary
    settings: dict[str, Any] = {
        "to": options.to,
        "eos_id": vocabulary.eos_id,
        "add_eos": options.add_eos,
        "tokenizer": vocabulary.tokenizer.content_hash if vocabulary.tokenizer else None,
        "text_key": options.text_key,
        "template": options.template,
    }
    if options.to in ("hdf5", "corpus"):
        return _stream_to_hdf5(options, source, notes, settings)
    if options.to == "bin":
        part = _BIN_PART // vocabulary.dtype.itemsize
        return ConvertPlan(
            source, lambda place: BinTarget(part, vocabulary, place), settings, notes
        )
    if options.to in ROW_FORMS:
        return _stream_to_rows(options, source, notes, settings)
    if options.to == "tokens":
        return _to_documents(TokenLists, None, options, source, notes, settings)
    return _stream_to_text(options, source, notes, settings)


def _stream_to_rows(
    options: ConvertOptions, source: StreamSource, notes: tuple[str, ...], settings: dict[str, Any]
) -> ConvertPlan:
    length = options.length or DEFAULT_LENGTH
    per_shard = _per_shard(options, 4 * length)
    settings |= {"items_per_file": per_shard, "max_sequence_length": length}
    return ConvertPlan(
        source,
        lambda place: RowShards(
            form=ROW_FORMS[options.to],
            length=length,
            per_shard=per_shard,
            vocabulary=source.facts.vocabulary,
            place=place,
        ),
        settings,
        notes,
    )


def _stream_to_hdf5(
    options: ConvertOptions, source: StreamSource, notes: tuple[str, ...], settings: dict[str, Any]
) -> ConvertPlan:
    vocabulary, compression = source.facts.vocabulary, options.compression
    length = options.length or DEFAULT_LENGTH
    item = 12 * length if options.to == "hdf5" else vocabulary.dtype.itemsize
    per_shard = options.samples_per_file or _per_shard(options, item)
    settings |= {"items_per_file": per_shard, "compression": compression}
    if options.to == "corpus":
        return ConvertPlan(
            source,
            lambda place: CorpusTarget(
                per_shard=per_shard, vocabulary=vocabulary, compression=compression, place=place
            ),
            settings,
            notes,
        )
    return ConvertPlan(
        source,
        lambda place: SampleTarget(
            length=length,
            per_shard=per_shard,
            vocabulary=vocabulary,
            compression=compression,
            place=place,
        ),
        {**settings, "max_sequence_length": length},
        notes,
    )


def _stream_to_text(
    options: ConvertOptions, source: StreamSource, notes: tuple[str, ...], settings: dict[str, Any]
) -> ConvertPlan:
    vocabulary = source.facts.vocabulary
    assert vocabulary.tokenizer is not None
    detokenizer = load_detokenizer(vocabulary.tokenizer)
    if not detokenizer.exact and not options.lossy:
        raise InputError(
            f"{vocabulary.tokenizer.name} is not byte-level, so texts come back changed (white "
            "space, normalised characters); --lossy writes them anyway"
        )
    form = choose_form(options.to, "--to")
    if isinstance(form, PluggedForm):
        settings["software"] = {f"output format {form}": str(form.code)}
    new_writer = partial(_new_writer, form, options.lossy)
    return _to_documents(new_writer, detokenizer, options, source, notes, settings)


def _to_documents(
    new_writer: Callable[[], DocumentWriter],
    detokenizer: Detokenizer | None,
    options: ConvertOptions,
    source: StreamSource,
    notes: tuple[str, ...],
    settings: dict[str, Any],
) -> ConvertPlan:
    size = options.shard_size or DEFAULT_SHARD
    return ConvertPlan(
        source,
        lambda place: DocumentTarget(
            form=new_writer(),
            shard_bytes=size,
            vocabulary=source.facts.vocabulary,
            detokenizer=detokenizer,
            place=place,
        ),
        {**settings, "shard_size": size},
        notes,
    )


def _new_writer(form: Form, lossy: bool) -> DocumentWriter:
    if isinstance(form, PluggedForm):
        return Plugged(form, lossy)
    return Parquet() if form == "parquet" else Jsonl(compress=form == "jsonl.zst")


_TEXT_PER_TOKEN = 4.3
"""Bytes of English in a GPT-2 token."""
_PACKED = {"gzip": 1.4, "gzip-shuffle": 1.25, "none": 12.0}
"""Bytes of a `sample` file for one token of English."""
_SHOWN = 5


def estimate(plan: ConvertPlan, options: ConvertOptions) -> dict[str, Any]:
    """Plain data for the terminal or JSON; figures named `about_` are estimates."""
    facts = plan.source.facts
    files = [path for path, _ in facts.files]
    more = [f"and {len(files) - _SHOWN} more"] if len(files) > _SHOWN else []
    tokens, exact = _tokens(plan)
    settings = plan.settings
    return {
        "from": facts.kind,
        "files": len(files),
        "input_bytes": facts.bytes,
        "inputs": [*files[:_SHOWN], *more],
        "to": options.to,
        "out": str(options.out),
        "max_sequence_length": settings.get("max_sequence_length") or facts.max_sequence_length,
        "rows": facts.items if facts.unit == "rows" else None,
        "tokens": tokens if exact else None,
        "about_tokens": None if exact else tokens,
        "about_output_bytes": _size(plan, options, tokens),
        "notes": list(plan.notes),
    }


def _tokens(plan: ConvertPlan) -> tuple[int, bool]:
    """(number, whether it is exact)."""
    facts = plan.source.facts
    if facts.unit == "tokens" and facts.items is not None:
        return facts.items, True
    if facts.unit == "rows" and facts.items is not None and facts.max_sequence_length:
        return facts.items * facts.max_sequence_length, False
    per_byte = {"text": 1 / _TEXT_PER_TOKEN, "HDF5 (corpus)": 0.7}.get(facts.kind, 1 / 1.4)
    size = facts.bytes
    files = getattr(plan.source, "files", None)
    if facts.kind == "text" and files is not None:
        size = sum(file.text_estimate for file in files)
    return int(size * per_byte), False


def _size(plan: ConvertPlan, options: ConvertOptions, tokens: int) -> int:
    width = plan.source.facts.vocabulary.dtype.itemsize
    per_token = {
        "hdf5": _PACKED[options.compression],
        "corpus": width * (1.0 if options.compression == "none" else 0.7),
        "bin": float(width),
        "mds": 4.0,
        "litdata": 4.0,
        "tokens": 1.7,
        "jsonl": _TEXT_PER_TOKEN * 1.03,
        "jsonl.zst": _TEXT_PER_TOKEN * 0.4,
        "parquet": _TEXT_PER_TOKEN * 0.45,
    }.get(options.to, _TEXT_PER_TOKEN)
    return int(tokens * per_token)
