"""`pipeline.verify`, `pipeline.trace` and `pipeline.search`: questions to a finished run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import overload

from pipeline.api import AnyPath, local_path, local_path_or_none, run_path
from pipeline.core.errors import ConfigError, InputError
from pipeline.engine.progress import Progress
from pipeline.explain import find
from pipeline.explain.find import FoundDocuments
from pipeline.explain.search import SearchAnswer
from pipeline.explain.search import search_run as find_words
from pipeline.lineage import trace as backwards
from pipeline.lineage.checkpoint_trace import CheckpointTrace
from pipeline.lineage.exposure import ForwardTrace, trace_documents
from pipeline.lineage.generations import (
    count_documents_before,
    join_forward_traces,
    trace_run_checkpoint,
)
from pipeline.lineage.trace import TokenSpan
from pipeline.lineage.training import read_training
from pipeline.runs.generations import list_generations, several_generations
from pipeline.runs.origin import texts_home
from pipeline.runs.references import split_row
from pipeline.stories.verify import Check, verify_run


def verify(directory: AnyPath, *, lineage: int | None = None) -> list[Check]:
    """Check a finished run, as `prep verify`: hashes, ledger, HDF5 contract, EOS count, lineage.

    directory: the run directory, or its URL in a bucket.
    lineage: tokenize the text of so many spans again and compare; by default none.

    Returns what was checked, in words. Raises IntegrityError naming everything found wrong.
    """
    if lineage is not None and lineage < 1:
        raise ConfigError(f"lineage {lineage}: expected an integer of at least 1")
    return verify_run(run_path(directory), lineage)


def search(
    directory: AnyPath,
    words: str,
    *,
    train: AnyPath | None = None,
    limit: int | None = None,
    skip: int = 0,
    progress: bool = False,
) -> SearchAnswer:
    """Find words in the texts of a run, word for word or nearly, as `prep search`.

    directory: the run directory, or its URL in a bucket.
    words: what to find; case, punctuation and line breaks are ignored, and for every five words
        one may be changed, left out or added.
    train: the model_dir of a training run, to list the steps that read the documents.
    limit: return so many documents at most; by default all.
    skip: leave out so many documents, the first ones.
    progress: report on standard error.

    Returns the documents with places, HDF5 rows and training steps, fewest changes first. Words
    that more than 1,024 texts have by the index of the run are looked for in the order of the run,
    as far as `limit` asks. Raises InputError for no words, for a run without texts, and for what is
    no run or model_dir.
    """
    for name, value in (("limit", limit or 0), ("skip", skip)):
        if value < 0:
            raise ConfigError(f"{name} {value}: expected an integer of at least 0")
    where, model_dir = run_path(directory), local_path_or_none(train)
    return find_words(where, words, model_dir, limit, Progress(quiet=not progress), skip)


@overload
def trace(directory: AnyPath, *, step: int, train: AnyPath) -> list[TokenSpan]: ...
@overload
def trace(directory: AnyPath, *, checkpoint: AnyPath, train: AnyPath) -> CheckpointTrace: ...
@overload
def trace(
    directory: AnyPath,
    *,
    file: AnyPath,
    row: int | None = None,
    tokens: tuple[int, int] | None = None,
) -> list[TokenSpan]: ...
@overload
def trace(
    directory: AnyPath,
    *,
    document: str | None = None,
    work: str | None = None,
    isbn: str | None = None,
    reg: str | None = None,
    title: str | None = None,
    text: str | None = None,
    train: AnyPath | None = None,
    registry: AnyPath | None = None,
    progress: bool = False,
) -> ForwardTrace: ...
def trace(
    directory: AnyPath,
    *,
    step: int | None = None,
    checkpoint: AnyPath | None = None,
    file: AnyPath | None = None,
    row: int | None = None,
    tokens: tuple[int, int] | None = None,
    document: str | None = None,
    work: str | None = None,
    isbn: str | None = None,
    reg: str | None = None,
    title: str | None = None,
    text: str | None = None,
    train: AnyPath | None = None,
    registry: AnyPath | None = None,
    progress: bool = False,
) -> list[TokenSpan] | CheckpointTrace | ForwardTrace:
    """Trace training data, as `prep trace`: exactly one of the questions, backwards to documents
    (step, checkpoint, file) or forwards to rows, steps and checkpoints (document to text).

    directory: the run directory, or its URL in a bucket.
    step: a step, counted from 1; needs `train`.
    checkpoint: a checkpoint directory or its name; needs `train`.
    file: an HDF5 shard of the run, as a path or its unique ending; with `row` or `tokens`, or
        written SHARD[ROW].
    row: a row of that shard, counted from 0.
    tokens: (first, stop), places in that row, or in a corpus shard; stop is left out.
    document: a key in hex or six digits of its beginning, FILE:LINE, FILE, or SHARD[ROW].
    work: the id of a work in the registry of works.
    isbn: an ISBN.
    reg: a registration number such as TX 1-234-567.
    title: a title in the registry.
    text: a text; finds the same text, near-duplicates and passages of it.
    train: the model_dir of a training run; forwards, to list its steps.
    registry: a registry of works; by default the one the run was screened with.
    progress: report on standard error.

    Returns spans of tokens with their documents for step and file, documents and sources for a
    checkpoint, documents with places and exposure for the others. A step listed read a row: that is
    exposure, not influence or memorisation. Raises ConfigError unless there is one question with
    what it needs, InputError for what is not in the run, IntegrityError for damage and for steps
    that read another data set.
    """
    where, model_dir = run_path(directory), local_path_or_none(train)
    if file is not None and row is None and (place := split_row(str(file))) is not None:
        file, row = place
    questions = {
        "step": step,
        "checkpoint": checkpoint,
        "file": file,
        "document": document,
        "work": work,
        "isbn": isbn,
        "reg": reg,
        "title": title,
        "text": text,
    }
    name = choose_question(questions, model_dir, row, tokens)
    if model_dir is not None and step is not None:
        return backwards.trace_step(where, model_dir, step)
    if model_dir is not None and checkpoint is not None:
        return trace_run_checkpoint(where, model_dir, local_path(checkpoint))
    if file is not None:
        return find_spans(where, local_path(file), row, tokens)
    works, reporter = local_path_or_none(registry), Progress(quiet=not progress)
    return trace_found(where, (name, str(questions[name])), works, model_dir, reporter)


def choose_question(
    questions: Mapping[str, object],
    train: Path | None,
    row: int | None,
    tokens: object,
    mark: str = "",
) -> str:
    """Return the name of the question that is asked. Raises ConfigError, with `mark` before names,
    unless there is one question with what it needs."""
    chosen = [name for name, value in questions.items() if value is not None]
    if len(chosen) != 1:
        names, got = (", ".join(f"{mark}{name}" for name in some) for some in (questions, chosen))
        raise ConfigError(f"trace: expected one of {names}; got {got or 'none'}")
    name = chosen[0]
    if name in ("step", "checkpoint") and train is None:
        raise ConfigError(f"trace: {mark}{name} needs {mark}train, the model_dir of a training run")
    if name != "file" and (row is not None or tokens is not None):
        raise ConfigError(f"trace: {mark}row and {mark}tokens need {mark}file")
    if name == "file" and row is None and tokens is None:
        raise ConfigError(f"trace: {mark}file needs {mark}row, or {mark}tokens for a corpus")
    return name


def trace_found(
    directory: Path,
    question: tuple[str, str],
    registry: Path | None,
    model_dir: Path | None,
    progress: Progress,
) -> ForwardTrace:
    """Find the documents that a question, by its name and value, is about, and trace them; in all
    generations. Raises as `find_documents`, InputError also for the name of a document that is one
    in several of them."""
    generations = list_generations(directory)
    answers, unknown = [], []
    for generation, before in zip(generations, count_documents_before(generations), strict=True):
        try:
            found = find_documents(generation.directory, *question, registry, progress)
        except InputError as error:
            unknown.append(error)
            continue
        trace = trace_documents(generation.directory, found.rows, model_dir, found.because)
        answers.append((generation, before, replace(trace, notes=found.notes)))
    if not answers:
        raise unknown[0]
    if len(answers) > 1 and question[0] == "document" and not find.leads_on(question[1]):
        raise several_generations(question[1], [generation for generation, *_ in answers])
    training = read_training(model_dir) if model_dir is not None else None
    traces = [trace for *_, trace in answers]
    return join_forward_traces(traces, [before for _, before, _ in answers], training)


def find_documents(
    directory: Path, name: str, value: str, registry: Path | None, progress: Progress
) -> FoundDocuments:
    """Find the documents that a question is about. Raises ConfigError or InputError."""
    if name == "document":
        return find.find_named(directory, value)
    home = texts_home(directory)
    match name:
        case "work":
            return find.find_of_work(home, value, registry)
        case "title":
            return find.find_of_title(home, value, registry)
        case "isbn":
            return find.find_of_number(home, "isbn", value, registry)
        case "reg":
            return find.find_of_number(home, "usco", value, registry)
    return find.find_text(home, value, progress=progress)


def find_spans(
    directory: Path, file: Path, row: int | None, tokens: tuple[int, int] | None
) -> list[TokenSpan]:
    """Trace a row of a shard, or tokens of it or of a corpus, one of which is given."""
    unknown = []
    for generation in list_generations(directory):
        try:
            if tokens is not None:
                return backwards.trace_tokens(generation.directory, file, *tokens, row)
            assert row is not None, "choose_question refuses this"
            return backwards.trace_row(generation.directory, file, row)
        except InputError as error:
            unknown.append(error)
    raise unknown[0]
