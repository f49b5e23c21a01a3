"""`prep export`: what it writes against plain Python, in every format; resume; refusals."""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core import rng, zstd
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import tree_hash
from pipeline.stages.records import label_meta
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork

SEED = 7
SETTINGS = (
    "mixture={epochs: {Wiki: 2.5, Code: 0.5}}", "splits={test: 10 %}", "dedup.preset=none",
    "lines={unit: line, min_characters: 10, min_documents: 2}",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with copies, cut lines and three splits."""
    out = tmp_path_factory.mktemp("exported") / "run"
    pipeline.run(corpus.config, out, 0, overrides=SETTINGS)
    return out


def records(out: Path, split: str) -> list[dict[str, Any]]:
    """All records of a split, in the order of its files."""
    return [record for path in files(out, split) for record in read(path)]


def files(out: Path, split: str) -> list[Path]:
    return sorted((out / "records" / split).iterdir())


def read(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        yield from pq.read_table(path).to_pylist()
        return
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstd.decompress(data)
    elif path.suffix == ".gz":
        data = gzip.decompress(data)
    for line in data.decode().split("\n")[:-1]:
        yield json.loads(line)


def texts(run: Path) -> dict[bytes, str]:
    """Text of every document as it is tokenized: cut, byte by byte."""
    found = {}
    for shard in sorted((run / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(shard).read_all()
        keys, values = table["doc_key"].to_pylist(), table["text"].to_pylist()
        found |= {k: v.encode() for k, v in zip(keys, values, strict=True)}
    if (run / "lines.parquet").exists():
        for cut in reversed(pq.read_table(run / "lines.parquet").to_pylist()):
            text = found[cut["doc_key"]]
            found[cut["doc_key"]] = text[: cut["byte_start"]] + text[cut["byte_end"] :]
    return {key: text.decode() for key, text in found.items()}


def expected(run: Path, split: str, shuffled: bool = True) -> list[tuple[str, str]]:
    """(key, text) of every copy of every kept document of a split, in order."""
    text, kept = texts(run), []
    for number, row in enumerate(pq.read_table(run / "documents.parquet").to_pylist()):
        if row["state"] == "kept" and row["split"] == split:
            kept += [(number, row["doc_key"], c) for c in range(copies(row, split))]
    if shuffled:
        kept.sort(key=lambda k: (rank(k[1], f"shuffle/{k[2]}" if k[2] else "shuffle"), k[1]))
    return [(key.hex(), text[key]) for _, key, _ in kept]


def copies(row: dict[str, Any], split: str) -> int:
    epochs = {"Wiki": 2.5, "Code": 0.5}.get(row["source"], 1.0) if split == "train" else 1.0
    count = 0
    while count + rank(row["doc_key"], f"mixture/{count}") / 2**64 < epochs:
        count += 1
    return count


def rank(key: bytes, purpose: str) -> int:
    return int(rng.rank(np.frombuffer(key, np.uint64).reshape(1, 2), SEED, purpose)[0])


@pytest.mark.parametrize("form", ["jsonl.zst", "jsonl.gz", "jsonl", "parquet"])
def test_every_format(run: Path, form: str, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """Text, key, source and licence of every copy, in the order of the stream."""
    ended = prep("export", run, "--out", tmp_path, "--format", form, "--shard-size", "9 kB")
    assert ended.code == 0, ended.err
    known = {r["doc_key"].hex(): r for r in pq.read_table(run / "documents.parquet").to_pylist()}
    for split in ("train", "validation", "test"):
        found = records(tmp_path, split)
        assert [(r["key"], r["text"]) for r in found] == expected(run, split)
        for record in found:
            row = known[record["key"]]
            assert (record["source"], record["licence"]) == (row["source"], row["licence"])
            assert list(record) == ["text", "meta", "key", "source", "licence"]
    assert len(files(tmp_path, "train")) > 3
    verify_run(tmp_path)


def test_stream_order(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """The exported documents are those of the token stream, one by one."""
    prep("export", run, "--out", tmp_path, "--shard-size", "20 kB")
    for split in ("train", "validation", "test"):
        shards = sorted((run / "stream").glob(f"{split}-*.arrow"))
        table = pa.concat_tables([pa.ipc.open_file(shard).read_all() for shard in shards])
        keys = [key.hex() for key in table["doc_key"].to_pylist()]
        assert [record["key"] for record in records(tmp_path, split)] == keys


def test_document_order(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    for size in ("5 kB", "1 MB"):
        prep("export", run, "--out", tmp_path, "--no-shuffle", "--shard-size", size, "--fields",
             "key,text")  # fmt: skip
        for split in ("train", "validation", "test"):
            found = [(r["key"], r["text"]) for r in records(tmp_path, split)]
            assert found == expected(run, split, shuffled=False)


def test_read_again(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """A run over the export has the same texts and sources."""
    for form in ("jsonl.zst", "parquet"):
        out, config = tmp_path / form, tmp_path / "again.yaml"
        prep("export", run, "--out", out, "--format", form, "--split", "train")
        config.write_text(
            f"inputs: [{{name: again, path: '{out / 'records' / 'train'}'}}]\n"
            "clean: {min_length: 0, fix_text: false}\ndedup: {preset: none}\n"
            "pack: {validation_share: 0}\n"
        )
        pipeline.run(config, tmp_path / f"run-{form}", 0)
        again = [
            (row["text_key"], row["source"])
            for shard in (tmp_path / f"run-{form}" / "documents").glob("*.arrow")
            for row in pa.ipc.open_file(shard).read_all().select(["text_key", "source"]).to_pylist()
        ]
        table = pq.read_table(run / "documents.parquet").to_pylist()
        source = {row["doc_key"].hex(): row["source"] for row in table}
        first = [(text_key(text), source[key]) for key, text in expected(run, "train")]
        assert Counter(again) == Counter(first)


def test_its_directory_is_an_input(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """Of `prep convert` and `prep run`: the records, and neither manifests nor journal. One that is
    not finished is refused."""
    out, config = tmp_path / "out", tmp_path / "again.yaml"
    killed = prep_in_fork("export", run, "--out", out, fault="storage.publish.renamed@12=kill")
    assert killed.code == -9 and (out / "records").is_dir()
    refused = prep("convert", out, "--to", "jsonl", "--out", tmp_path / "texts")
    assert refused.code == 3 and "not finished" in refused.err
    prep("export", run, "--out", out)
    ended = prep("convert", out, "--to", "jsonl", "--out", tmp_path / "texts")
    assert ended.code == 0, ended.err
    texts = [r["text"] for p in sorted((tmp_path / "texts").glob("*.jsonl")) for r in read(p)]
    splits = sorted(path.name for path in (out / "records").iterdir())
    assert texts == [r["text"] for split in splits for r in records(out, split)]
    config.write_text(f"inputs: [{{name: again, path: '{out}'}}]\nclean: {{min_length: 0}}\n")
    again = pipeline.run(config, tmp_path / "again", 0)
    sources = json.loads((again.directory / "ledger.json").read_bytes())["sources"].values()
    assert sum(source["records"]["documents"] for source in sources) == len(texts)
    assert not any(source["bad"] for source in sources)


def text_key(text: str) -> bytes:
    import xxhash

    return xxhash.xxh3_128_digest(text.encode())


def test_after_clean_up(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """The same bytes, and --dry-run tells what will be there."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    prep("export", run, "--out", tmp_path / "before", "--shard-size", "20 kB")
    assert prep("clean-up", copy).code == 0
    assert not (copy / "keep").exists()
    ended = prep("export", copy, "--out", tmp_path / "after", "--shard-size", "20 kB", "--json")
    assert ended.code == 0, ended.err
    assert tree_hash(tmp_path / "before") == tree_hash(tmp_path / "after")
    told = json.loads(prep("export", copy, "--out", tmp_path / "x", "--dry-run", "--json").out)
    made = json.loads(ended.out)["splits"]
    assert [s["documents"] for s in told] == [s["documents"] for s in made]
    assert not (tmp_path / "x").exists()
    shutil.rmtree(copy / "documents")
    ended = prep("export", copy, "--out", tmp_path / "gone")
    assert ended.code == 3
    assert "documents/000000.arrow: missing" in ended.err


def test_workers(run: Path, tmp_path: Path, prep: Callable[..., Any], two_workers: int) -> None:
    for workers in (0, two_workers):
        out = tmp_path / str(workers)
        done = prep("export", run, "--out", out, "--workers", workers, "--shard-size", "20 kB")
        assert done.code == 0, done.err
    assert tree_hash(tmp_path / "0") == tree_hash(tmp_path / "2")


@pytest.mark.parametrize(
    "point",
    [
        "storage.publish.done@12",
        pytest.param("storage.publish.written@3", marks=pytest.mark.slow),
        pytest.param("storage.publish.renamed@20", marks=pytest.mark.slow),
        pytest.param("storage.remove@1", marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(
    run: Path, point: str, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """Killed in scatter, gather or clearing up: the next command ends with the same bytes."""
    options = ("--shard-size", "100 kB", "--workers", 0)
    assert prep("export", run, "--out", tmp_path / "whole", *options).code == 0
    out, fault = tmp_path / "out", f"{point}=kill"
    killed = prep_in_fork("export", run, "--out", out, *options, fault=fault)
    assert killed.code == -9
    assert prep("export", run, "--out", out, *options).code == 0
    assert tree_hash(out) == tree_hash(tmp_path / "whole")


def test_again_and_otherwise(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """The same request reuses everything; another one leaves nothing of the first."""
    prep("export", run, "--out", tmp_path, "--shard-size", "20 kB")
    before = tree_hash(tmp_path)
    ended = prep("export", run, "--out", tmp_path, "--shard-size", "20 kB")
    assert "everything was up to date" in ended.out
    assert tree_hash(tmp_path) == before
    prep("export", run, "--out", tmp_path, "--format", "jsonl", "--split", "test")
    assert [p.name for p in (tmp_path / "records" / "test").iterdir()] == ["000000.jsonl"]
    assert not list((tmp_path / "records").glob("train/*"))
    verify_run(tmp_path)
    prep("status", tmp_path)


def test_manifest(run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    import hashlib

    prep("export", run, "--out", tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    told = {f["path"]: f for f in manifest["files"] if f["path"].startswith("records/")}
    for path, file in told.items():
        data = (tmp_path / path).read_bytes()
        assert file["sha256"] == hashlib.sha256(data).hexdigest()
        assert (file["size"], file["documents"]) == (len(data), len(list(read(tmp_path / path))))
    assert set(told) == {f"records/{s}/000000.jsonl.zst" for s in ("train", "validation", "test")}
    path = tmp_path / "records/test/000000.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="damaged"):
        verify_run(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "csv"), "--format csv: expected one of jsonl.zst"),
        (("--split", "tset"), "no split 'tset'; did you mean 'test'?"),
        (("--fields", "text,url"), "--fields: expected text and any of meta, key, source, licence"),
        (("--fields", "meta"), "--fields: expected text"),
        (("--shard-size", "10 B"), "--shard-size: expected 1 kB to 2 GB"),
        (("--shard-size", "many"), "--shard-size: expected 1 kB to 2 GB"),
    ],
)
def test_bad_options(
    run: Path, options: tuple[str, ...], message: str, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    ended = prep("export", run, "--out", tmp_path / "out", *options)
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported(
    run: Path, corpus: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    ended = prep("export", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert (ended.code, "no such run directory" in ended.err) == (3, True)
    ended = prep("export", corpus.root, "--out", tmp_path / "out")
    assert (ended.code, "not a finished run" in ended.err) == (3, True)
    prep("dedup", corpus.root / "raw/web/a.jsonl", "--out", tmp_path / "dedup")
    ended = prep("export", tmp_path / "dedup", "--out", tmp_path / "out")
    assert (ended.code, "made by `prep dedup`" in ended.err) == (3, True)
    for out in (run, run / "text", tmp_path / "dedup"):
        ended = prep("export", run, "--out", out)
        assert (ended.code, "--out" in ended.err) == (2, True)
    verify_run(run)


def test_labels() -> None:
    """Meta keeps its bytes, but for a label where it has none, and for line ends."""
    assert (
        label_meta('{"a":  NaN, "pile_set_name": "W"}', "W") == '{"a":  NaN, "pile_set_name": "W"}'
    )
    assert json.loads(label_meta('{\n"a": 1\n}', "w")) == {"pile_set_name": "w", "a": 1}
    for meta in ("null", "{}", '{"pile_set_name": null, "redpajama_set_name": "x"}'):
        value = json.loads(label_meta(meta, "web"))
        assert next(iter(value.items())) == ("pile_set_name", "web")
    nested = '{"a": {"pile_set_name": "no"}}'
    assert json.loads(label_meta(nested, "web")) == {"pile_set_name": "web", **json.loads(nested)}
