"""Licences: what was declared and is unknown or restricted, what the text states, and conflicts.

Kinds: `declared` (only for documents whose declared licence is not known, or is restricted or
reserved), `statement` (of every licence the first in the text), `conflict` (at most one: what the
text states of itself asks for more than what was declared).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.provenance.detectors.contract import (
    FINDINGS,
    Finding,
    attributes_json,
    findings_table,
)
from pipeline.provenance.detectors.spdx import RANKS, SpdxLicence, licence_of, normalise_licence
from pipeline.provenance.detectors.spread import in_order
from pipeline.provenance.detectors.statements import GROUP, NEEDLES, Statement, find_statements
from pipeline.provenance.detectors.sweep import SweepHits, sweep_all

__all__ = ["GROUP", "NEEDLES", "NOT_KNOWN", "detect_licences"]

NOT_KNOWN = "NOASSERTION"
"""The target of a declared licence that is not known: SPDX's word for it."""

_TOLD = ("restricted", "reserved")


def detect_licences(batch: pa.Table, swept: SweepHits | None = None) -> pa.Table:
    """FINDINGS on the licences of a batch; target: an SPDX expression.

    swept: a sweep over `batch["text"]` that has `NEEDLES` as its group `licence`; without it, the
    texts are swept here. attributes: basis (metadata, address, tag, name, wording, notice),
    confidence (high, low), declared (SPDX expression, or the value where it is not known), family.
    """
    swept = swept or sweep_all(batch["text"], {GROUP: NEEDLES})
    declared = batch["licence"]
    findings = list[Finding]()
    for statements in find_statements(swept):
        value = declared[statements[0].row].as_py()
        licence = normalise_licence(value)
        findings += [_finding("statement", one, value, licence, swept) for one in statements]
        worst = _conflict(statements, licence)
        if worst is not None:
            findings.append(_finding("conflict", worst, value, licence, swept))
    return in_order([_declared(declared), findings_table(findings)])


def _declared(values: pa.ChunkedArray) -> pa.Table:
    """Findings on the documents whose declared licence has to be told."""
    encoded = values.combine_chunks().dictionary_encode()
    told = list[Finding]()
    number = np.full(len(encoded.dictionary), -1, np.int64)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        licence = normalise_licence(value)
        if not value or (licence.spdx and licence.family not in _TOLD):
            continue
        attributes = attributes_json(
            {"basis": "metadata", "confidence": "high", "declared": licence.spdx or _shown(value),
             "family": licence.family or "unknown"}
        )  # fmt: skip
        number[code] = len(told)
        target = licence.spdx or NOT_KNOWN
        told.append(Finding(len(told), "declared", target, value, attributes=attributes))
    of_row = number[encoded.indices.to_numpy()]
    rows = np.flatnonzero(of_row >= 0)
    return (
        findings_table(told)
        .take(pa.array(of_row[rows]))
        .set_column(0, FINDINGS.field("row"), pa.array(rows, pa.int64()))
    )


def _conflict(statements: Sequence[Statement], declared: SpdxLicence) -> Statement | None:
    """The statement that asks for most, if it asks for more than what was declared.

    A reservation is none beside a licence in the same text: licences begin with one.
    """
    if not declared.family:
        return None
    own = [
        (RANKS.get(licence_of(s.spdx).family, -1), s) for s in statements if s.confidence == "high"
    ]
    licensed = any(0 <= rank < RANKS["reserved"] for rank, _ in own)
    worst = max(
        (pair for pair in own if not (licensed and pair[0] == RANKS["reserved"])),
        key=lambda pair: (pair[0], -pair[1].offset),
        default=None,
    )
    least = max(RANKS[declared.family], RANKS["permissive"])
    return worst[1] if worst is not None and worst[0] > least else None


def _finding(
    kind: str, statement: Statement, value: str, licence: SpdxLicence, swept: SweepHits
) -> Finding:
    end = statement.offset + statement.length
    seen = swept.cut(statement.row, statement.offset, end).decode("utf-8", "replace")
    attributes = {
        "basis": statement.basis,
        "confidence": statement.confidence,
        "declared": licence.spdx or _shown(value),
        "family": licence_of(statement.spdx).family or "unknown",
    }
    return Finding(
        statement.row, kind, statement.spdx, seen, statement.offset, statement.length,
        attributes=attributes_json(attributes),
    )  # fmt: skip


def _shown(value: str) -> str:
    return value if len(value) <= 80 else value[:79] + "…"
