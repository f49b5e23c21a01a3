"""What a redact decision takes out of a text: the places of the evidence that it names."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids

SPANS = pa.schema([
    ("doc_key", pa.binary(ids.KEY_BYTES)), ("byte_offset", pa.uint64()),
    ("byte_length", pa.uint64()),
])  # fmt: skip
"""Spans of cleaned text, by document in the order of the decisions, ascending and apart."""

_MOST_BYTES = 1 << 36
"""More than any text has; document and place fit one int64 for 2^27 documents."""


def redaction_spans(decisions: pa.Table, evidence: pa.Table) -> pa.Table:
    """SPANS of every document whose decision is redact: the rows of evidence that it names and that
    have a length, overlapping and touching ones joined. Every such document has at least one."""
    redact = decisions.filter(pc.equal(decisions["decision"], "redact"))
    named = pa.chunked_array(redact["evidence"].chunks, redact["evidence"].type).combine_chunks()
    row = pc.index_in(named.flatten(), value_set=evidence["evidence_id"].combine_chunks())
    document = pc.list_parent_indices(named).to_numpy().astype(np.int64)
    here = evidence.select(["byte_offset", "byte_length"]).take(row)
    length = pc.fill_null(here["byte_length"], 0).to_numpy().astype(np.int64)
    spans = length > 0
    first = here["byte_offset"].to_numpy(zero_copy_only=False)[spans].astype(np.int64)
    start = document[spans] * _MOST_BYTES + first
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + length[spans])[order]
    reached = np.maximum.accumulate(end) if len(end) else end
    begins = np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]])[: len(start)])
    stop = reached[np.append(begins[1:], len(start)) - 1] if len(start) else reached
    owner, offset = np.divmod(start[begins], _MOST_BYTES)
    keys = redact["doc_key"].take(pa.array(owner)).combine_chunks()
    columns = [keys, pa.array(offset.astype(np.uint64)),
               pa.array((stop - start[begins]).astype(np.uint64))]  # fmt: skip
    return pa.table(columns, schema=SPANS)
