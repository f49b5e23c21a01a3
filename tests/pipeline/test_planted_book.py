"""The drill: a book is planted, trained on, claimed afterwards, traced and taken down.

It stands in three files, as a copy without any metadata, and as an edited excerpt in another text.
Everything expected is worked out from the HDF5 shards and the lineage beside them, read plainly,
and from the batches that the trainer's own loader makes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import pipeline
from pipeline.hdf5.format import SAMPLE_FEATURES
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.runs import layout
from pipeline.screening.registry import load_registry
from pipeline.screening.registry.importing import ImportOptions, import_works
from pipeline.stories.verify import verify_run
from pipeline.tokenizers.training import TrainingSettings, save_tokenizer, train_tokenizer
from trainer.config import load_params
from trainer.data import TrainingData
from trainer.loop.options import TrainOptions
from trainer.loop.run import run_training as train
from trainer.runs.record import order_seed

MSL, BATCH, STEPS, EVERY = 32, 4, 130, 5
VOCABULARY = 500
Prep = Callable[..., Any]


@dataclass(frozen=True)
class Drill:
    """Where everything stands: the run as prepared and a copy that is taken down of."""

    root: Path
    run: Path
    registry: Path
    work: str
    planted: frozenset[str]
    """File and line of every record that holds something of the book."""

    @property
    def model(self) -> Path:
        return self.root / "out"

    def train(self, steps: int) -> None:
        request = TrainOptions(
            target="CSX", params=self.root / "params.yaml", model_dir=self.model, mode="train",
            num_csx=2, num_steps=steps, data=self.run,
        )  # fmt: skip
        assert train(request, lambda line: None) == 0


def edited(text: str) -> str:
    words = text.split(" ")
    for place in range(6, len(words), 11):
        words[place] = "otherwise"
    return " ".join(words)


def write_collection(root: Path, prose: Callable[..., str]) -> tuple[str, frozenset[str]]:
    """Four raw shards of invented prose; returns the book, and where something of it stands."""
    book = "\n".join(f"Chapter {n}. {prose(77_000 + n, 200)}" for n in range(6))
    chapters = book.split("\nChapter")
    excerpt = edited(" ".join(book.split()[500:900]))
    records: list[list[str]] = [
        [prose(1000 * shard + n, 60) for n in range(45)] for shard in range(4)
    ]
    pieces = {0: "\nChapter".join(chapters[:2]), 1: "\nChapter".join(chapters[2:4]),
              2: "\nChapter".join(chapters[4:])}  # fmt: skip
    for shard, piece in pieces.items():
        records[shard][37 + shard] = piece
    records[3][11] = " ".join(book.split())
    records[3][42] = f"{prose(91, 500)}\n{excerpt}\n{prose(92, 500)}"
    (root / "raw").mkdir()
    for shard, texts in enumerate(records):
        lines = [json.dumps({"text": text, "meta": {"pile_set_name": "Web"}}) for text in texts]
        (root / f"raw/{shard}.jsonl").write_text("\n".join(lines) + "\n")
    places = {f"web/{s}.jsonl:{38 + s}" for s in pieces} | {"web/3.jsonl:12", "web/3.jsonl:43"}
    return book, frozenset(places)


def write_params(root: Path) -> None:
    params = {
        "train_input": {"batch_size": BATCH, "micro_batch_size": 2},
        "eval_input": {"batch_size": BATCH, "micro_batch_size": 2},
        "model": {"vocab_size": VOCABULARY, "max_position_embeddings": MSL, "hidden_size": 8,
                  "num_hidden_layers": 1, "num_heads": 2, "filter_size": 16},
        "optimizer": {"learning_rate": 0.001},
        "runconfig": {"checkpoint_steps": EVERY, "max_checkpoints": 200, "seed": 3, "threads": 1,
                      "min_leaves": 1},
    }  # fmt: skip
    (root / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory, write_prose: Callable[..., str]) -> Drill:
    """Prepared before anybody knows of the book, trained on, then claimed and looked for."""
    root = tmp_path_factory.mktemp("drill")
    book, places = write_collection(root, write_prose)
    texts = [json.loads(line)["text"] for p in sorted((root / "raw").iterdir())
             for line in p.read_text().splitlines()]  # fmt: skip
    save_tokenizer(root, train_tokenizer(texts, TrainingSettings(vocab_size=VOCABULARY)))
    (root / "c.yaml").write_text(
        "name: drill\ninputs: [{name: web, path: raw}]\ntokenize: {tokenizer: tokenizer.json}\n"
        f"pack: {{max_sequence_length: {MSL}, validation_share: 1 %}}\n"
        "hdf5: {shard_sequences: 300}\n"
    )
    pipeline.run(root / "c.yaml", root / "run", 0)
    write_params(root)
    (root / "book.txt").write_text(book)
    (root / "works.csv").write_text("title,author,text\nThe Planted Book,A. Nobody,book.txt\n")
    import_works([root / "works.csv"], root / "works", ImportOptions(texts=root))
    [work] = load_registry(root / "works").works["work_id"].to_pylist()
    made = Drill(root, root / "run", root / "works", work, places)
    made.train(STEPS)
    return made


@dataclass(frozen=True)
class Truth:
    """By plain reading: per row of the data set, which labels belong to the planted documents, and
    whether the row holds any of their tokens; the rows that every step read."""

    labels: dict[bytes, np.ndarray]
    steps: dict[int, list[bytes]]

    def exposed(self, last: int) -> list[int]:
        """Steps that read a label of the documents."""
        return [
            step for step, rows in self.steps.items()
            if step <= last and any(self.labels[row].any() for row in rows)
        ]  # fmt: skip


def rows_of(dataset: SampleDataset) -> np.ndarray:
    """(R, 3, MSL): all rows, by h5py."""
    parts = []
    for shard in dataset.shards:
        with h5py.File(dataset.directory / shard.name) as file:
            parts.append(file["data"][:])
    return np.concatenate(parts)


def label_owners(run: Path) -> np.ndarray:
    """(R, MSL): the document (row of documents.parquet) of every label, -1 for padding."""
    dataset = open_dataset(run / "hdf5/train")
    spans, first = [], 0
    for shard in dataset.shards:
        name = shard.name.removesuffix(".h5")
        table = pq.read_table(run / f"hdf5/train/{name}.lineage.parquet").to_pylist()
        spans += [{**span, "row": first + span["row"]} for span in table]
        first += shard.rows
    length = 1 + max(s["stream_row"] * MSL + s["token_end"] for s in spans)
    stream = np.full(length, -1)
    stream_row = {}
    for span in spans:
        start = span["stream_row"] * MSL
        stream[start + span["token_start"] : start + span["token_end"]] = span["doc"]
        stream_row[span["row"]] = span["stream_row"]
    stream[-1] = stream[-2]  # the last token of the stream is a label only
    owners = np.full((first, MSL), -1)
    for row, place in stream_row.items():
        part = stream[place * MSL + 1 : place * MSL + MSL + 1]
        owners[row, : len(part)] = part
    return owners


def planted_documents(drill: Drill) -> dict[int, str]:
    """Rows of documents.parquet of what was planted, with file and line."""
    sources = [f"{s['input']}/{s['path']}"
               for s in pq.read_table(drill.run / layout.SOURCES).to_pylist()]  # fmt: skip
    documents = pq.read_table(drill.run / layout.DOCUMENTS).to_pylist()
    found = {
        n: f"{sources[d['path_id']]}:{d['line']}"
        for n, d in enumerate(documents)
        if f"{sources[d['path_id']]}:{d['line']}" in drill.planted and d["split"] == "train"
    }
    return found


def truth(drill: Drill, steps: int) -> Truth:
    """What the trainer's loader gives at every step, against the rows as they stand on disk."""
    dataset = open_dataset(drill.run / "hdf5/train")
    rows, owners = rows_of(dataset), label_owners(drill.run)
    mine = np.isin(owners, list(planted_documents(drill)))
    keys = [row.tobytes() for row in rows.astype(np.int64)]
    counting = [key for key, row in zip(keys, rows, strict=True) if row[1].any()]
    assert len(set(counting)) == len(counting), "rows with labels that count can be told apart"
    params = load_params(drill.root / "params.yaml")
    data = TrainingData(dataset, seed=order_seed(params), schedule=params.train_input.schedule)
    read = {}
    for step in range(1, steps + 1):
        batch = data.batch(step)
        stacked = np.stack([batch[name].numpy() for name in SAMPLE_FEATURES], axis=1)
        read[step] = [row.astype(np.int64).tobytes() for row in stacked]
    return Truth(dict(zip(keys, mine, strict=True)), read)


def test_found_traced_and_taken_down(drill: Drill, prep: Prep, tmp_path: Path) -> None:
    planted = planted_documents(drill)
    assert len(planted) == 5, "none was dropped, a duplicate or held out"

    # Found? By text alone, in a run that was finished before the claim.
    rescan = prep("rescan", drill.run, "--registry", drill.registry, "--json")
    [matched] = json.loads(rescan.out)["matched"]
    assert (matched["work_id"], matched["documents"]) == (drill.work, 5)

    # Which rows? Which steps? The first checkpoint exposed, and the last one not?
    asked = ("trace", drill.run, "--work", drill.work, "--registry", drill.registry,
             "--train", drill.model, "--json")  # fmt: skip
    answer = json.loads(prep(*asked).out)
    assert {f"{d['path']}:{d['line']}" for d in answer["documents"]} == drill.planted
    before = truth(drill, STEPS)
    owners = label_owners(drill.run)
    rows = np.flatnonzero(np.isin(owners, list(planted)).any(axis=1))
    dataset = open_dataset(drill.run / "hdf5/train")
    names = {(f"train/{dataset.file_and_row(int(r))[0].name}", dataset.file_and_row(int(r))[1])
             for r in rows}  # fmt: skip
    told = {(p["file"], p["row"]) for p in answer["places"] if p["label_start"] < p["label_end"]}
    assert told == names
    exposed = before.exposed(STEPS)
    assert answer["exposure"]["steps"] == exposed and len(exposed) > 20
    first = -(-exposed[0] // EVERY) * EVERY
    assert answer["exposure"]["first_exposed"]["step"] == first
    last = answer["exposure"]["last_unexposed"]
    assert (last["step"] if last else 0) == first - EVERY

    # Taken down: no label of it counts any more, nothing else changed.
    untouched = rows_of(dataset)
    (tmp_path / "claim.yaml").write_text(
        "id: drill-1\nclaimant: A. Nobody\nreceived: 2026-03-01\nbasis: the drill\n"
        f"what: {{works: [{drill.work}]}}\n"
    )
    claim = ("takedown", tmp_path / "claim.yaml", "--run", drill.run, "--train", drill.model)
    planned = json.loads(prep(*claim, "--plan", "--json").out)
    assert planned["documents"]["count"] == 5
    applied = prep(*claim, "--apply", "--by", "T. Ester")
    assert applied.code == 0, applied.err
    masked = rows_of(open_dataset(drill.run / "hdf5/train"))
    mine = np.isin(owners, list(planted))
    assert not masked[:, 1][mine].any(), "no label of the book counts"
    assert (masked[:, 1][~mine] == untouched[:, 1][~mine]).all()
    assert (masked[:, 2][~mine] == untouched[:, 2][~mine]).all(), "nothing else changed"
    verify_run(drill.run)
    for folder in ("documents", "tokens"):
        for path in (drill.run / folder).glob("*.arrow"):
            for text in ("Chapter 0.", "Chapter 4."):
                assert text.encode() not in path.read_bytes()

    explained = json.loads(prep("explain", drill.run, "web/3.jsonl:12", "--json").out)
    assert explained["taken_down"] == ["drill-1"]

    # Training goes on, over the next epoch, and no later step trains on it.
    drill.train(2 * STEPS)
    after = truth(drill, 2 * STEPS)
    again = json.loads(prep(*asked).out)
    assert again["exposure"]["steps"] == exposed, "and no step was added"
    assert again["exposure"]["next_step"] is None
    later = [row for step in range(STEPS + 1, 2 * STEPS + 1) for row in after.steps[step]]
    again_read = [row for row in later if after.labels[row].any()]
    assert len(again_read) > 50, "the rows are read all the same"
    for row in set(again_read):
        _, mask, _ = np.frombuffer(row, np.int64).reshape(3, MSL)
        assert not mask[after.labels[row]].any()
    prepared_again = pipeline.run(drill.root / "c.yaml", drill.run, 0)
    assert len(prepared_again.reused) == len(prepared_again.stages), "and it does not come back"
