"""Decisions of several deciders on the same documents as one each: the policy, the filters and
decontamination."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.provenance.evidence import DECISIONS


def ranks(decisions: pa.ChunkedArray | pa.Array) -> I64:
    """Index into DECISIONS of each of N decisions, (N,)."""
    found: I64 = pc.index_in(decisions, value_set=pa.array(DECISIONS)).to_numpy().astype(np.int64)
    return found


def worst_decisions(*tables: pa.Table) -> pa.Table:
    """Tables of one schema (DECISION_SCHEMA, or without doc_id) as one, a row per document: of
    several decisions the most severe, the first of equal ones, with the evidence of all. By doc_id
    where there is one, else in the order in which documents first appear."""
    table = pa.concat_tables(tables).combine_chunks()
    encoded = pc.dictionary_encode(table["doc_key"].combine_chunks())
    document = encoded.indices.to_numpy().astype(np.int64)
    if "doc_id" in table.column_names:
        document = np.unique(table["doc_id"].to_numpy(), return_inverse=True)[1]
    order = np.lexsort((-ranks(table["decision"]), document))  # stable: the first of equal ones
    _, first = np.unique(document[order], return_index=True)
    evidence = _joined(table["evidence"].combine_chunks(), document)
    worst = table.take(pa.array(order[first]))
    place = worst.column_names.index("evidence")
    return worst.set_column(place, worst.schema.field("evidence"), evidence)


def _joined(evidence: pa.ListArray, document: I64) -> pa.ListArray:
    """The lists of each document as one, by ascending document; each in table order."""
    by_document = np.argsort(document, kind="stable")
    lengths = pc.list_value_length(evidence).to_numpy().astype(np.int64)
    totals = np.bincount(document, lengths).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(totals)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), evidence.take(pa.array(by_document)).flatten()
    )
