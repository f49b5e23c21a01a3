"""clusters.parquet, joined with the sources of both ends.

One row is one document that another stands for. `similarity` is the exact Jaccard similarity where
it was computed, else the signatures' estimate. A document kept in an earlier index has no source
here: `kept_source` is null and `index` names the place.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.errors import IntegrityError
from pipeline.provenance.records import wrap_read_errors

_COLUMNS = ["kept", "member", "kind", "estimate", "jaccard", "member_state", "index"]
_LABELS = ["kind", "member_state"]


def read_clusters(path: Path) -> pa.Table:
    """The table without `bands`, which only shown rows need (`read_bands`)."""
    with wrap_read_errors(path):
        return pq.read_table(path, columns=_COLUMNS, read_dictionary=_LABELS)


def find_mentioned_keys(clusters: pa.Table) -> pa.Array:
    """Keys of all documents of this run that the table names, each once or twice."""
    here = clusters.filter(pc.equal(clusters["index"], ""))
    return pa.chunked_array(
        [*clusters["member"].chunks, *here["kept"].chunks], pa.binary(ids.KEY_BYTES)
    ).combine_chunks()


def with_sources(clusters: pa.Table, documents: pa.Table) -> pa.Table:
    """Append `source`, `kept_source` (null for an index) and `similarity`.

    `documents` has `doc_key` and `source` of all documents that `find_mentioned_keys` names, or of
    more. Raises IntegrityError when one is missing.
    """
    keys = documents["doc_key"].combine_chunks()
    here = pc.equal(clusters["index"], "")
    member = pc.index_in(clusters["member"], value_set=keys)
    kept = pc.if_else(here, pc.index_in(clusters["kept"], value_set=keys), None)
    if member.null_count or kept.null_count > len(clusters) - (pc.sum(here).as_py() or 0):
        raise IntegrityError(
            "clusters.parquet names documents that are not in this run; `prep run` writes it again"
        )
    source = documents["source"].combine_chunks()
    return (
        clusters.append_column("source", source.take(member))
        .append_column("kept_source", source.take(kept))
        .append_column("similarity", pc.coalesce(clusters["jaccard"], clusters["estimate"]))
    )


def rows_of(path: Path, column: str, keys: Sequence[bytes]) -> pa.Table:
    """All columns of the rows whose `column` (`kept` or `member`) is among these keys, read one row
    group at a time."""
    wanted = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
    with wrap_read_errors(path):
        file = pq.ParquetFile(path)
        parts = [file.schema_arrow.empty_table()]
        for group in range(file.num_row_groups):
            found = pc.is_in(file.read_row_group(group, [column])[column], wanted).to_numpy()
            if found.any():
                parts.append(file.read_row_group(group).take(np.flatnonzero(found)))
    return pa.concat_tables(parts)


def read_bands(path: Path, members: Sequence[bytes]) -> dict[bytes, tuple[int, ...]]:
    """The bands that these documents share with the ones that stand for them."""
    table = rows_of(path, "member", members)
    bands = (tuple(shared) for shared in table["bands"].to_pylist())
    return dict(zip(table["member"].to_pylist(), bands, strict=True))
