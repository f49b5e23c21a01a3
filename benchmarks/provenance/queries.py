"""How long a question about lineage takes at a million documents, and what lineage costs on disk.

    python -m benchmarks.provenance.queries [--documents 1000000] [--rounds 15] [--folder DIR]
        [--peer-python PYTHON] [--json FILE]

A run directory of that many documents is made first (benchmarks/provenance/made_run.py), rows of
2,048 tokens, and a training run of two epochs in batches of 512. Every round asks for other rows,
steps and documents, with everything opened afresh; the figure is the median, files being in the
page cache. Our answers come from `pipeline.screening`. DuckDB, where the interpreter given with
--peer-python has it, answers the same from the same parquet files by SQL; its answers must be
equal. Bytes are those of the parquet files, per record in documents.parquet.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.common.measuring import machine
from benchmarks.provenance.made_run import Made, make_run, write_training
from pipeline.core import rng
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.tables import Inverse
from pipeline.lineage.trace import trace_row, trace_step
from pipeline.lineage.training import read_training
from pipeline.runs.records import DocumentTable
from pipeline.takedown.data_set import find_document_places

BATCH = 512
EPOCHS = 2
PEER = Path(__file__).resolve().parent / "peers" / "duckdb_queries.py"
GOALS = {"row": 50, "step of 512 rows": 100, "takedown of 25 documents": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, options.folder or Path(folder))
    print_result(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the run, ask everything, ask the peer."""
    run, model = folder / "run", folder / "model"
    made = make_run(run, options.documents)
    steps = EPOCHS * made.rows // BATCH
    write_training(model, BATCH, steps)
    asked = questions(run, model, made, steps, options.rounds)
    figures = {name: _median(rounds) for name, rounds in asked.items()}
    peer = ask_peer(options, run, model, steps) if options.peer_python else {}
    return {
        "made": vars(made), "steps": steps, "milliseconds": figures, "duckdb": peer,
        "bytes_per_document": sizes(run, made), "machine": machine(),
    }  # fmt: skip


def questions(
    run: Path, model: Path, made: Made, steps: int, rounds: int
) -> dict[str, list[Callable[[], Any]]]:
    """Name -> one question per round."""
    draw = rng.generator(2, "questions")
    dataset = open_dataset(run / "hdf5/train")
    docs = np.concatenate([part["doc"].to_numpy() for part in Inverse(dataset).parts()])
    keys = DocumentTable(run).take(docs[:: max(1, len(docs) // 4000)].astype(np.int64), ["doc_key"])
    key_list = keys["doc_key"].to_pylist()
    tokens = pq.read_table(run / "documents.parquet", columns=["tokens"])["tokens"].to_numpy()
    asked: dict[str, list[Callable[[], Any]]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        shard = int(draw.integers(0, made.shards))
        row = int(draw.integers(0, dataset.shards[shard].rows))
        path = dataset.directory / dataset.shards[shard].name
        first, later = (int(draw.integers(low, low + steps // 2)) for low in (1, steps // 2 + 2))
        some = np.sort(draw.choice(docs, 25, replace=False)).astype(np.int64)
        chosen = [key_list[i] for i in draw.choice(len(key_list), 25, replace=False)]
        answers = (
            _row(run, path, row), _step(run, model, first), _step(run, model, later),
            _documents(run, some, model), _documents(run, some[:1], model),
            _by_key(run, chosen, model), _places(run, some, tokens),
        )  # fmt: skip
        for name, answer in zip(NAMES, answers, strict=True):
            asked[name].append(answer)
    return asked


NAMES = (
    "row", "step of 512 rows, first epoch", "step of 512 rows, later epoch",
    "takedown of 25 documents", "one document", "takedown of 25 documents given by key",
    "places of 25 documents to mask",
)  # fmt: skip


def _row(run: Path, path: Path, row: int) -> Callable[[], Any]:
    # an HDF5 file that was never made stands in for itself
    path.touch()
    return lambda: trace_row(run, path, row)


def _step(run: Path, model: Path, step: int) -> Callable[[], Any]:
    return lambda: trace_step(run, model, step)


def _documents(run: Path, docs: np.ndarray, model: Path) -> Callable[[], Any]:
    return lambda: trace_documents(run, docs, model)


def _by_key(run: Path, keys: list[bytes], model: Path) -> Callable[[], Any]:
    return lambda: trace_documents(run, DocumentTable(run).rows_of_keys(keys), model)


def _places(run: Path, docs: np.ndarray, tokens: np.ndarray) -> Callable[[], Any]:
    gone = np.zeros(len(tokens), np.bool_)
    gone[docs] = True
    counts = tokens.astype(np.int64)
    return lambda: find_document_places(open_dataset(run / "hdf5/train"), gone, counts)


def _median(rounds: list[Callable[[], Any]]) -> float:
    taken = []
    for ask in rounds:
        started = time.perf_counter()
        ask()
        taken.append(1000 * (time.perf_counter() - started))
    return round(median(taken[1:] or taken), 1)


def ask_peer(options: argparse.Namespace, run: Path, model: Path, steps: int) -> dict[str, Any]:
    """DuckDB on the same files: medians, after its answers were compared with ours."""
    dataset = open_dataset(run / "hdf5/train")
    training = read_training(model)
    draw = rng.generator(3, "peer")
    rounds = []
    for _ in range(options.rounds):
        step = int(draw.integers(steps // 2 + 2, steps))
        rows = training.rows_of_step(dataset, step)
        shards = np.searchsorted(dataset.starts, rows, side="right") - 1
        places = [(int(s), int(r - dataset.starts[s])) for s, r in zip(shards, rows, strict=True)]
        expected = sorted({s.document for s in trace_step(run, model, step)
                           if s.token_start < s.token_end})  # fmt: skip
        rounds.append({"places": places, "documents": len(expected)})
    done = subprocess.run(
        [options.peer_python, str(PEER), str(run)], input=json.dumps(rounds), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    if found.pop("documents") != [r["documents"] for r in rounds]:
        raise SystemExit("DuckDB and pipeline.screening differ")
    return found


def sizes(run: Path, made: Made) -> dict[str, float]:
    """Bytes of every part of lineage per record."""
    groups = {
        "documents.parquet": sorted((run / "documents.parquet").iterdir()),
        "lineage beside the shards": sorted(run.rglob("*.lineage.parquet")),
        "inverse.parquet": sorted(run.rglob("inverse.parquet/*")),
    }
    found = {
        name: round(sum(p.stat().st_size for p in paths) / made.documents, 2)
        for name, paths in groups.items()
    }
    return {**found, "all": round(sum(found.values()), 2)}


def print_result(result: dict[str, Any]) -> None:
    made = result["made"]
    print(
        f"{made['documents']:,} documents, {made['tokens']:,} tokens in train, {made['rows']:,} "
        f"rows in {made['shards']} shards"
    )
    for name, value in result["milliseconds"].items():
        goal = next((f"  (goal {g} ms)" for n, g in GOALS.items() if name.startswith(n)), "")
        print(f"{name:<40}{value:>8.1f} ms{goal}")
    for name, value in result["duckdb"].items():
        print(f"duckdb: {name:<32}{value:>8}")
    for name, value in result["bytes_per_document"].items():
        print(f"{name:<40}{value:>8.2f} bytes a document")


if __name__ == "__main__":
    main()
