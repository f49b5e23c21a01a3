"""Decisions brought together: of several deciders, over clusters, and as places to redact.

A cluster is a star: a kept document and its members. The worst decision of a star
holds for all of it, over edges of equal texts or of an exact Jaccard similarity of `min_jaccard`.
Taken over are review, quarantine and drop of rules with `propagate: true`; not redact and decisions
of filters, which are about one text. What a person decided stays, unless it is a review.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import F64, I64
from pipeline.core import ids
from pipeline.screening.evidence import DECISIONS
from pipeline.screening.policy.rules import Policy, compile_rules


def rank_decisions(decisions: pa.ChunkedArray | pa.Array) -> I64:
    """Index into DECISIONS of each of N decisions, (N,)."""
    rank: I64 = pc.index_in(decisions, value_set=pa.array(DECISIONS)).to_numpy().astype(np.int64)
    return rank


def select_worst(*tables: pa.Table) -> pa.Table:
    """Tables of one schema (DECISION_SCHEMA, or without doc_id) as one, a row per document: of
    several decisions the most severe, the first of equal ones, with the evidence of all. By doc_id
    where there is one, else in the order in which documents first appear."""
    table = pa.concat_tables(tables).combine_chunks()
    encoded = pc.dictionary_encode(table["doc_key"].combine_chunks())
    document = encoded.indices.to_numpy().astype(np.int64)
    if "doc_id" in table.column_names:
        document = np.unique(table["doc_id"].to_numpy(), return_inverse=True)[1]
    order = np.lexsort(
        (-rank_decisions(table["decision"]), document)
    )  # stable: the first of equal ones
    _, first = np.unique(document[order], return_index=True)
    evidence = _join_lists(table["evidence"].combine_chunks(), document)
    worst = table.take(pa.array(order[first]))
    place = worst.column_names.index("evidence")
    return worst.set_column(place, worst.schema.field("evidence"), evidence)


def _join_lists(evidence: pa.ListArray, document: I64) -> pa.ListArray:
    """The lists of each document as one, by ascending document; each in table order."""
    by_document = np.argsort(document, kind="stable")
    lengths = pc.list_value_length(evidence).to_numpy().astype(np.int64)
    totals = np.bincount(document, lengths).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(totals)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), evidence.take(pa.array(by_document)).flatten()
    )


SPREADING = ("review", "quarantine", "drop")
_NOBODY = -1
_LAST_RANK = len(DECISIONS)
"""Above all: nothing outranks it."""


@dataclass(frozen=True)
class _Stars:
    """S stars as N places: star (N,), key of the document, similarity to the kept one (1 for the
    kept document itself), and its row in the decisions or _NOBODY."""

    star: I64
    key: pa.Array
    similarity: F64
    row: I64


def propagate(decisions: pa.Table, clusters: pa.Table, policy: Policy) -> pa.Table:
    """The decisions with those that documents take over, in place of a less severe own one or added
    at the end by key; `doc_id` of added rows is null (see `number_decisions`).

    decisions: one row per document, as `evaluate` gives them. clusters: the columns kept, member,
    kind, jaccard and index of clusters.parquet; every document is a member at most once, and
    members have no members. A row taken over repeats rule and evidence of the worst decision of
    the star, of equal ones that of the smallest key, which is in `propagated_from`; its reason
    names that key and the lower similarity of the two documents to the kept one.
    """
    decisions = decisions.combine_chunks()
    if policy.propagate.mode == "none" or not len(decisions):
        return decisions
    stars = _find_stars(decisions, clusters, policy.propagate.min_jaccard)
    rank, spreading, fixed = _rank_own(decisions, policy)
    own = np.where(stars.row == _NOBODY, 0, rank[stars.row])
    own[(stars.row != _NOBODY) & fixed[stars.row]] = _LAST_RANK
    giver = _find_givers(stars, np.where(stars.row == _NOBODY, 0, spreading[stars.row]))
    givers = giver[stars.star]
    place = np.flatnonzero((givers != _NOBODY) & (own < spreading[stars.row[givers]]))
    if not len(place):
        return decisions
    return _replace_rows(
        decisions, _make_rows(decisions, stars, place, givers[place]), stars.row[place]
    )


def number_decisions(decisions: pa.Table, documents: pa.Table) -> pa.Table:
    """Decisions with `doc_id` from a table of doc_id and doc_key, sorted by it; both name the same
    documents, or `documents` more."""
    place = pc.index_in(decisions["doc_key"], value_set=documents["doc_key"].combine_chunks())
    doc_id = documents["doc_id"].take(place)
    if "doc_id" in decisions.column_names:
        decisions = decisions.drop_columns(["doc_id"])
    return decisions.add_column(0, pa.field("doc_id", pa.uint64()), doc_id).sort_by("doc_id")


def _find_stars(decisions: pa.Table, clusters: pa.Table, min_jaccard: float) -> _Stars:
    same = pc.equal(clusters["kind"], "exact")
    near = pc.fill_null(pc.greater_equal(clusters["jaccard"], min_jaccard), False)
    edges = clusters.filter(pc.or_(same, near)).combine_chunks()
    member, kept_key = (edges[name].combine_chunks() for name in ("member", "kept"))
    similarity = pc.fill_null(edges["jaccard"].combine_chunks(), 1.0).to_numpy(zero_copy_only=False)
    similarity = np.where(
        pc.equal(edges["kind"], "exact").to_numpy(zero_copy_only=False), 1.0, similarity
    )
    elsewhere = pc.dictionary_encode(edges["index"].combine_chunks())
    star_codes = pc.dictionary_encode(kept_key).indices.to_numpy().astype(np.int64)
    pair = star_codes * max(1, len(elsewhere.dictionary)) + elsewhere.indices.to_numpy()
    _, first, star = np.unique(pair, return_index=True, return_inverse=True)
    here = pc.equal(edges["index"], "").to_numpy(zero_copy_only=False)[first]
    key = pa.concat_arrays([member, kept_key.take(pa.array(first[here]))])
    row = pc.fill_null(pc.index_in(key, value_set=decisions["doc_key"].combine_chunks()), _NOBODY)
    return _Stars(
        np.concatenate([star, np.flatnonzero(here)]),
        key,
        np.concatenate([similarity, np.ones(int(here.sum()))]),
        row.to_numpy().astype(np.int64),
    )


def _rank_own(decisions: pa.Table, policy: Policy) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Of every decision: its rank, its rank as one to take over (0: it is none), and whether a
    person made it."""
    rank = rank_decisions(decisions["decision"])
    rules = compile_rules(policy)
    spreads = [r.rule.id for r in rules if r.rule.propagate]
    people = [r.rule.id for r in rules if r.rests_on_review]
    own = pc.is_null(decisions["propagated_from"])
    by_rule = pc.is_in(decisions["rule"], pa.array(spreads, pa.string()))
    kind = pc.is_in(decisions["decision"], pa.array(SPREADING))
    spreading = pc.and_(pc.and_(by_rule, kind), own).to_numpy()
    by_person = pc.is_in(decisions["rule"], pa.array(people, pa.string()))
    fixed = pc.and_(by_person, pc.not_equal(decisions["decision"], "review")).to_numpy()
    return rank, np.where(spreading, rank, 0), fixed


def _find_givers(stars: _Stars, spreading: I64) -> I64:
    """Of every star the place whose decision the others take over, or _NOBODY; (S,)."""
    giver = np.full(int(stars.star.max(initial=-1)) + 1, _NOBODY)
    places = np.flatnonzero(spreading > 0)
    keys = ids.keys_as_u64(stars.key.take(pa.array(places)))
    order = places[ids.sort_order(keys, -spreading[places], stars.star[places])]
    star, first = np.unique(stars.star[order], return_index=True)
    giver[star] = order[first]
    return giver


def _make_rows(decisions: pa.Table, stars: _Stars, place: I64, giver: I64) -> pa.Table:
    """Rows of decisions for the documents at `place`, who take over those of `giver`."""
    table = decisions.take(pa.array(stars.row[giver]))
    source = stars.key.take(pa.array(giver))
    lowest = np.minimum(stars.similarity[place], stars.similarity[giver])
    three_digits = pa.array([f"{thousandth / 1000:.3f}" for thousandth in range(1001)])
    digits = three_digits.take(pa.array(np.rint(lowest * 1000).astype(np.int64)))
    reason = pc.binary_join_element_wise(
        pc.binary_join_element_wise("same cluster as ", ids.hex_keys(source), ""),
        pc.binary_join_element_wise("Jaccard ", digits, ""),
        ", ",
    )
    columns = {
        "doc_key": stars.key.take(pa.array(place)),
        "reason": pc.binary_join_element_wise(reason, table["reason"], ": "),
        "propagated_from": source,
    }
    if "doc_id" in table.column_names:
        row = stars.row[place]
        columns["doc_id"] = decisions["doc_id"].take(pa.array(row, mask=row == _NOBODY))
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(name), values)
    return table


def _replace_rows(decisions: pa.Table, new_rows: pa.Table, row: I64) -> pa.Table:
    """The decisions, those at `row` (_NOBODY: there is none) replaced, the rest added by key."""
    source = np.arange(len(decisions))
    replaced = row != _NOBODY
    source[row[replaced]] = len(decisions) + np.flatnonzero(replaced)
    added = np.flatnonzero(~replaced)
    keys = ids.keys_as_u64(new_rows["doc_key"].take(pa.array(added)))
    order = np.concatenate([source, len(decisions) + added[ids.sort_order(keys)]])
    return pa.concat_tables([decisions, new_rows]).take(pa.array(order)).combine_chunks()


SPANS = pa.schema(
    [
        ("doc_key", pa.binary(ids.KEY_BYTES)),
        ("byte_offset", pa.uint64()),
        ("byte_length", pa.uint64()),
    ]
)
"""Spans of cleaned text, by document in the order of the decisions, ascending and apart."""

_MOST_BYTES = 1 << 36
"""More than any text has; document and place fit one int64 for 2^27 documents."""


def find_redaction_spans(decisions: pa.Table, evidence: pa.Table) -> pa.Table:
    """SPANS of every document whose decision is redact: the rows of evidence that it names and that
    have a length, overlapping and touching ones joined. Every such document has at least one."""
    redact = decisions.filter(pc.equal(decisions["decision"], "redact"))
    evidence_ids = pa.chunked_array(
        redact["evidence"].chunks, redact["evidence"].type
    ).combine_chunks()
    row = pc.index_in(evidence_ids.flatten(), value_set=evidence["evidence_id"].combine_chunks())
    document = pc.list_parent_indices(evidence_ids).to_numpy().astype(np.int64)
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
    columns = [
        keys,
        pa.array(offset.astype(np.uint64)),
        pa.array((stop - start[begins]).astype(np.uint64)),
    ]
    return pa.table(columns, schema=SPANS)
