"""Tokenize: the kept documents, in document order, each ended by one EOS -> tokens/."""

from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.keep import STATES
from pipeline.stages.lines import cut_texts
from pipeline.tokenizers import gpt2_bpe

U16 = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class TokenizeJob:
    """One documents shard, its keep-list, and the spans to cut from its texts, if any."""

    index: int
    documents: Shard
    keep: Shard
    cuts: Shard | None


def token_lists(tokens: U16, lengths: npt.NDArray[np.int64]) -> pa.LargeListArray:
    """A flat stream and document lengths as one list per document."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))


def flat_tokens(column: pa.ChunkedArray) -> U16:
    """All tokens of a list column, in order, (tokens,) uint16."""
    parts = [chunk.flatten().to_numpy() for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.uint16), *parts])


def list_lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The length of every list in a column, (N,) int64."""
    parts = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _tokenize(job: TokenizeJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, tokens (list of uint16, EOS included)."""
    keep = inputs.table(job.keep)
    kept = np.flatnonzero(keep["state"].to_numpy() == STATES.index("kept"))
    rows = pa.array(kept, pa.int64())
    documents = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    column = documents["text"]
    if job.cuts is not None:
        column = cut_texts(column, inputs.table(job.cuts))
    texts = (column[row].as_py() for row in kept.tolist())
    ended = [np.append(ids, np.uint16(gpt2_bpe.EOS_ID)) for ids in gpt2_bpe.encode(texts)]
    lengths = np.array([len(ids) for ids in ended], np.int64)
    table = pa.table(
        {
            "doc_id": documents["doc_id"].take(rows),
            "doc_key": documents["doc_key"].take(rows),
            "tokens": token_lists(np.concatenate([np.zeros(0, np.uint16), *ended]), lengths),
        }
    ).combine_chunks()
    counters = {"documents": len(kept), "tokens": int(lengths.sum())}
    return Result((arrow_output(layout.shard("tokens", job.index, "arrow"), table),), counters)


def tokenize_stage(clean: StageManifest, keep: StageManifest, cuts: StageManifest | None) -> Stage:
    """The stage that turns text into ids; `cuts` names what is cut from the texts before."""
    documents = clean.below("documents")
    keeps = keep.below("keep")
    spans = cuts.below("cuts") if cuts else (None,) * len(documents)
    tasks = []
    for index, (document, kept, cut) in enumerate(zip(documents, keeps, spans, strict=True)):
        job = TokenizeJob(index, document, kept, cut)
        inputs = (document, kept) if cut is None else (document, kept, cut)
        tasks.append(Task(f"tokens of {document.path}", job, inputs, document.size))
    settings = {"tokenizer": "gpt2", "vocabulary": gpt2_bpe.content_hash()}
    return Stage(
        "tokenize", 2, _tokenize, tuple(tasks), settings, {"tokenizers": version("tokenizers")}
    )
