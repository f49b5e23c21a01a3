"""Rows and steps by DuckDB: python duckdb_queries.py RUN < ROUNDS

ROUNDS: a JSON list of {"places": [[shard, row], ...]}. Prints medians in milliseconds and how many
documents every round found. Two steps, as in the brief of this field's fast answers: spans of the
rows first, then the documents by row number.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import duckdb


def spans(connection: duckdb.DuckDBPyConnection, run: Path, places: list[list[int]]) -> list[int]:
    """Documents in these rows."""
    shards = sorted({shard for shard, _ in places})
    files = [str(run / f"hdf5/train/examples_{shard:06d}.lineage.parquet") for shard in shards]
    connection.execute("create or replace temp table wanted (file varchar, row integer)")
    names = dict(zip(shards, files, strict=True))
    connection.execute(
        "insert into wanted select unnest($1::varchar[]), unnest($2::integer[])",
        [[names[shard] for shard, _ in places], [row for _, row in places]],
    )
    found = connection.execute(
        "select distinct l.doc from read_parquet($1, filename = true) l "
        "join wanted w on l.filename = w.file and l.row = w.row",
        [files],
    ).fetchnumpy()
    return [int(doc) for doc in found["doc"]]


def documents(connection: duckdb.DuckDBPyConnection, run: Path, rows: list[int]) -> int:
    """Their keys, sources, lines and decisions."""
    return len(
        connection.execute(
            "select doc_key, source, path_id, line, licence, decision, rule from "
            "read_parquet($1, file_row_number = true) "
            "where file_row_number in (select unnest($2::bigint[]))",
            [str(run / "documents.parquet/*.parquet"), rows],
        ).fetchall()
    )


def ask(run: Path, places: list[list[int]]) -> tuple[float, int]:
    """Milliseconds with a new connection, and how many documents."""
    started = time.perf_counter()
    connection = duckdb.connect()
    count = documents(connection, run, spans(connection, run, places))
    return 1000 * (time.perf_counter() - started), count


def main() -> None:
    run = Path(sys.argv[1])
    rounds: list[dict[str, Any]] = json.load(sys.stdin)
    steps = [ask(run, one["places"]) for one in rounds]
    rows = [ask(run, one["places"][:1]) for one in rounds]
    print(
        json.dumps(
            {
                "version": duckdb.__version__,
                "row": round(median(time for time, _ in rows[1:]), 1),
                "step of 512 rows, later epoch": round(median(time for time, _ in steps[1:]), 1),
                "documents": [count for _, count in steps],
            }
        )
    )


if __name__ == "__main__":
    main()
