"""Tokenize: the kept documents, each begun by a BOS, if the tokenizer has one, and ended by one
EOS, in the order of the shuffled streams -> tokens/.

The tokenizer itself is at the top of the run directory, as Hugging Face libraries read it.
"""

from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import Mask
from pipeline.core import ids
from pipeline.core.errors import FunctionError
from pipeline.core.manifest import Shard
from pipeline.core.plugins import PlugInCode, check_unchanged
from pipeline.core.storage import canonical_json
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, bytes_output
from pipeline.runs import layout
from pipeline.runs.layout import STATES
from pipeline.runs.views.cuts import CutsOutput
from pipeline.runs.views.data_set import TokenizerOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.stages.cuts import cut_texts
from pipeline.stages.shuffle.places import in_order, places
from pipeline.stages.splits import SplitRules, split_rules
from pipeline.tokenizers.arrangement import FILL_IN_MIDDLE, FillInMiddle
from pipeline.tokenizers.definition import TokenizerDefinition, restore_definition
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer, tokenize_documents
from pipeline.tokenizers.engines import REFERENCE, engine_code, load_plugged_engines
from pipeline.tokenizers.fill_in_middle import tokenize_rearranged

Tokens = npt.NDArray[Any]
"""uint16 where every id fits, else uint32."""

_FEW_BYTES = 1 << 19
"""Text of an input of one task that `tokenizers` is done with before another engine is built."""


@dataclass(frozen=True)
class TokenizerJob:
    """A tokenizer to publish, and what documents are rearranged by, if any are."""

    json: str
    eos_token: str
    bos_token: str | None
    fim: FillInMiddle | None = None


def _publish_tokenizer(job: TokenizerJob, inputs: Inputs) -> Result:
    config: dict[str, Any] = {
        "eos_token": job.eos_token,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if job.bos_token is not None:
        config["bos_token"] = job.bos_token
    if job.fim is not None:
        config[FILL_IN_MIDDLE] = asdict(job.fim)
    outputs = (
        bytes_output(layout.TOKENIZER, job.json.encode()),
        bytes_output(layout.TOKENIZER_CONFIG, canonical_json(config)),
    )
    return Result(outputs)


def tokenizer_stage(tokenizer: TokenizerDefinition, fim: FillInMiddle | None = None) -> Stage:
    """The stage that writes tokenizer.json and tokenizer_config.json."""
    job = TokenizerJob(tokenizer.json, tokenizer.eos_token, tokenizer.bos_token, fim)
    task = Task("tokenizer", job)
    return Stage(name="tokenizer", version=1, function=_publish_tokenizer, tasks=(task,))


@dataclass(frozen=True, kw_only=True)
class TokenizeJob:
    """One documents shard, its keep-list, and the spans to cut from its texts, if any. `splits`
    are what the split of a document follows from."""

    index: int
    tokenizer: Shard
    eos_id: int
    documents: Shard
    keep: Shard
    cuts: Shard | None
    splits: SplitRules


@dataclass(frozen=True, kw_only=True)
class NamedEngineJob(TokenizeJob):
    """The same with the engine that the config names, and its code if it is a plug-in."""

    engine: str
    code: PlugInCode | None


@dataclass(frozen=True)
class RearrangedJob:
    """The same, and what documents of train are rearranged by."""

    tokenize: TokenizeJob
    fim: FillInMiddle


def token_lists(tokens: Tokens, lengths: npt.NDArray[np.int64]) -> pa.LargeListArray:
    """A flat stream and document lengths as one list per document."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))


def list_lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The length of every list in a column, (N,) int64."""
    parts = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _tokenize(job: TokenizeJob | RearrangedJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, tokens (list of uint16 or uint32, BOS and EOS included), split and
    rank; and those of fill-in-the-middle, where it is asked for. Sorted by split and rank."""
    fim = None
    if isinstance(job, RearrangedJob):
        fim, job = job.fim, job.tokenize
    keep = inputs.table(job.keep)
    state = keep["state"].to_numpy()
    is_kept = pa.chunked_array([pa.array(state == STATES.index("kept"))])
    documents = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    texts = documents["text"]
    if job.cuts is not None:
        texts = cut_texts(texts, inputs.table(job.cuts))
    data = inputs.path(job.tokenizer).read_bytes()
    definition = restore_definition(layout.TOKENIZER, data, job.eos_id)
    if isinstance(job, NamedEngineJob):
        if job.code is not None:
            what = f"the tokenizer engine {job.engine}"
            check_unchanged(what, load_plugged_engines().get(job.engine), job.code)
        definition = replace(definition, engine=job.engine)
    elif job.index == 0 and texts.nbytes <= _FEW_BYTES:
        definition = replace(definition, engine=REFERENCE)
    tokenizer = open_tokenizer(definition)
    names = documents.select(["doc_id", "doc_key"]).filter(is_kept).combine_chunks()
    texts = texts.filter(is_kept)
    split = job.splits.assign(keep)[is_kept.to_numpy()]
    try:
        if fim is None:
            table = names.append_column("tokens", tokenize_documents(texts, tokenizer))
        else:
            table = _rearrange(names, texts, split == 0, tokenizer, fim)
    except FunctionError as error:
        raise FunctionError(f"{job.documents.path}: {error}") from error
    lengths = list_lengths(table["tokens"])
    once = np.ones(len(table), np.uint8)
    placed = places(ids.keys_as_u64(table["doc_key"]), split, once, job.splits.seed)
    counters = {
        "documents": len(table),
        "tokens": int(lengths.sum()),
        "splits": {n: int(lengths[split == i].sum()) for i, n in enumerate(job.splits.names)},
    }
    path = layout.shard("tokens", job.index, "arrow")
    return Result((arrow_output(path, in_order(table, placed)),), counters)


def _rearrange(
    names: pa.Table,
    texts: pa.ChunkedArray,
    in_train_N: Mask,
    tokenizer: TextTokenizer,
    fim: FillInMiddle,
) -> pa.Table:
    """The table with the documents of train rearranged."""
    keys = ids.keys_as_u64(names["doc_key"])
    tokens, about = tokenize_rearranged(texts, keys, in_train_N, tokenizer, fim)
    for name in about.column_names:
        names = names.append_column(name, about[name])
    return names.append_column("tokens", tokens)


def tokenize_stage(
    tokenizer: TokenizerDefinition,
    published: TokenizerOutput,
    clean: CleanOutput,
    keep: KeepOutput,
    cuts: CutsOutput | None,
    *,
    fim: FillInMiddle | None = None,
) -> Stage:
    """The stage that turns text into ids; `cuts` names what is cut from the texts before, `fim` how
    documents of train are rearranged."""
    assigned = split_rules(keep)
    documents, rules = clean.documents, published.definition
    spans = cuts.cuts if cuts else (None,) * len(documents)
    tasks = []
    for index, (document, kept, cut) in enumerate(zip(documents, keep.states, spans, strict=True)):
        job = TokenizeJob(
            index=index,
            tokenizer=rules,
            eos_id=tokenizer.eos_id,
            documents=document,
            keep=kept,
            cuts=cut,
            splits=assigned,
        )
        if tokenizer.engine is not None:
            job = NamedEngineJob(
                **vars(job), engine=tokenizer.engine, code=engine_code(tokenizer.engine)
            )
        inputs = (rules, document, kept) if cut is None else (rules, document, kept, cut)
        label = f"tokens of {document.path}"
        asked = job if fim is None else RearrangedJob(job, fim)
        tasks.append(Task(label, asked, inputs, document.size))
    software = {"tokenizers": version("tokenizers")}
    settings: dict[str, Any] = {"seed": keep.seed}
    if tokenizer.bos_id is not None:
        settings["bos_id"] = tokenizer.bos_id
    if fim is not None:
        settings["fim"] = asdict(fim)
    code = tokenizer.engine and engine_code(tokenizer.engine)
    if code:
        software[f"tokenizer engine {tokenizer.engine}"] = str(code)
    return Stage(
        name="tokenize",
        version=4,
        function=_tokenize,
        tasks=tuple(tasks),
        settings=settings,
        software=software,
    )
