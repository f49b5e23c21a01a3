"""Takedowns in what other commands write, and claims by address, text and work."""

import gzip
import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core import storage
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_file
from pipeline.core.manifest import read_manifest, read_sealed, write_manifest, write_sealed
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import parquet_output
from pipeline.stories.verify import verify_run
from pipeline.takedown.apply import SignOff, apply
from pipeline.takedown.claims import load_claim
from pipeline.takedown.copies import open_run_tables
from pipeline.takedown.plan import TakedownPlan, plan_takedown
from pipeline.takedown.scrub import replace_shards

SIGNED = SignOff("Jane Doe", date(2026, 3, 2), "mask")
RULES = ("--set", "read.max_bad_share=10 %")
Prep = Callable[..., Any]


def planned(run: Path, directory: Path, name: str = "c1", **what: Any) -> TakedownPlan:
    lines = "\n".join(f"  {key}: {json.dumps(value)}" for key, value in what.items())
    path = directory / f"{name}.yaml"
    path.write_text(
        f"id: {name}\nclaimant: P\nreceived: 2026-03-01\nbasis: a work\nwhat:\n{lines}\n"
    )
    return plan_takedown(open_run_tables(run), load_claim(path))


def kept(run: Path) -> list[dict[str, Any]]:
    rows = pq.read_table(run / "documents.parquet").to_pylist()
    return [row for row in rows if row["state"] == "kept"]


def lines_of(path: Path) -> list[Any]:
    from pipeline.sources.streams import decompress_blocks

    if path.suffix == ".parquet":
        return [json.dumps(row, default=str) for row in pq.read_table(path).to_pylist()]
    form = {".zst": "zst", ".gz": "gz"}.get(path.suffix)
    with open(path, "rb") as file:
        return b"".join(decompress_blocks(path, file, form)).decode().splitlines()


@pytest.mark.parametrize("command", ["dedup", "clean"])
def test_records_are_written_anew(corpus: Any, tmp_path: Path, prep: Prep, command: str) -> None:
    """Of every file the first, a middle and the last record go; the others stay byte for byte."""
    run = tmp_path / "run"
    options = ("--out", run, "--workers", 0, *(RULES if command == "clean" else ()))
    limit = ("--max-bad-share", 1) if command == "dedup" else ()
    ended = prep(command, corpus.root / "raw", *options, *limit)
    assert ended.code == 0, ended.err
    store = {"dedup": "records", "clean": "cleaned"}[command]
    files = sorted(p for p in (run / store).rglob("*") if p.is_file())
    before = {path: lines_of(path) for path in files}
    by_file: dict[int, list[str]] = {}
    for row in kept(run):
        by_file.setdefault(row["path_id"], []).append(row["doc_key"].hex())
    first = [keys[0] for keys in by_file.values()] + [keys[-1] for keys in by_file.values()]
    apply(planned(run, tmp_path, documents=first), SIGNED)
    second = [keys[len(keys) // 2] for keys in by_file.values()]
    apply(planned(run, tmp_path, "c2", documents=second), SIGNED)
    tables = [pq.read_table(run / f"takedowns/{name}.parquet") for name in ("c1", "c2")]
    taken = sum(table["state"].to_pylist().count("kept") for table in tables)
    assert taken >= len(set(first + second))
    gone = 0
    for path in files:
        after = lines_of(path)
        remaining = iter(before[path])
        assert all(line in remaining for line in after), f"{path} keeps order and bytes"
        gone += len(before[path]) - len(after)
    assert gone == taken
    verify_run(run)


def test_records_without_repeated_passages_are_written_anew(
    tmp_path: Path, prep: Prep, write_prose: Callable[..., str]
) -> None:
    """They are shorter than the lines that were read."""
    notice, raw, run = (
        "A notice that every document begins with. " * 2,
        tmp_path / "raw",
        tmp_path / "run",
    )
    raw.mkdir()
    for number, (name, pack) in enumerate({"a.jsonl": bytes, "b.jsonl.gz": gzip.compress}.items()):
        texts = (notice + write_prose(10 * number + n, 60) for n in range(5))
        lines = "\n".join(json.dumps({"text": text, "id": len(text)}) for text in texts)
        (raw / name).write_bytes(pack(lines.encode()))
    ended = prep("dedup", raw, "--out", run, "--workers", 0, "--substrings", 60)
    assert ended.code == 0, ended.err
    paths = [run / "records/a.jsonl", run / "records/b.jsonl.gz"]
    before = [lines_of(path) for path in paths]
    assert sum(notice in line for lines in before for line in lines) == 1
    rows = kept(run)
    gone = [rows[2]["doc_key"].hex(), rows[5 + 4]["doc_key"].hex()]
    apply(planned(run, tmp_path, documents=gone), SIGNED)
    apply(planned(run, tmp_path, "c2", documents=[rows[0]["doc_key"].hex()]), SIGNED)
    left = [[before[0][n] for n in (1, 3, 4)], before[1][:4]]
    assert [lines_of(path) for path in paths] == left
    verify_run(run)


def test_a_dedup_run_is_not_written_anew_in_place(corpus: Any, tmp_path: Path, prep: Prep) -> None:
    run = tmp_path / "run"
    options = ("--out", run, "--workers", 0, "--max-bad-share", 1)
    assert prep("dedup", corpus.root / "raw", *options).code == 0
    apply(planned(run, tmp_path, documents=[kept(run)[0]["doc_key"].hex()]), SIGNED)
    assert prep("dedup", corpus.root / "raw", *options).code == 0
    ended = prep("dedup", corpus.root / "raw", *options, "--preset", "exact")
    assert ended.code == 3
    assert "choose another --out" in ended.err


@pytest.fixture
def masked(small_run: Any, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    shutil.copytree(small_run.directory, run)
    keys = [row["doc_key"].hex() for row in kept(run)[:3]]
    apply(planned(run, tmp_path, documents=keys), SIGNED)
    return run


def test_exports_leave_them_out(masked: Path, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "text"
    assert prep("export", masked, "--out", out, "--format", "jsonl").code == 0
    records = [
        json.loads(s) for p in sorted((out / "records").rglob("*.jsonl")) for s in lines_of(p)
    ]
    taken = {k.hex() for k in pq.read_table(masked / "takedowns/c1.parquet")["doc_key"].to_pylist()}
    assert {record["key"] for record in records} == {
        row["doc_key"].hex() for row in kept(masked)
    } - taken
    assert all(record["text"] for record in records)
    verify_run(out)


def test_a_masked_run_is_not_packed_anew(masked: Path, tmp_path: Path, prep: Prep) -> None:
    ended = prep("repack", masked, "--out", tmp_path / "vsl", "--format", "vsl")
    assert ended.code == 3
    assert "prep run" in ended.err


def test_a_run_packed_anew_is_reached_too(small_run: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "vsl"
    assert prep("repack", small_run.directory, "--out", out, "--format", "vsl").code == 0
    apply(planned(out, tmp_path, documents=[kept(out)[0]["doc_key"].hex()]), SIGNED)
    verify_run(out)


def test_after_clean_up(small_run: Any, tmp_path: Path, prep: Prep) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run.directory, run)
    assert prep("clean-up", run).code == 0
    apply(planned(run, tmp_path, documents=[kept(run)[0]["doc_key"].hex()]), SIGNED)
    verify_run(run)
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert set(manifest.reused) == set(manifest.stages)


CONFIG = "name: web\ninputs:\n  - {name: web, path: raw}\ndedup: {preset: none}\n"


def test_claims_by_address_and_text(tmp_path: Path, write_prose: Callable[..., str]) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    work = write_prose(5, 4000)
    excerpt = " ".join(work.split()[500:900])
    rows: list[dict[str, Any]] = [
        {"text": write_prose(n), "meta": {"a": {"url": f"https://example.org/{n % 2}/{n}"}}}
        for n in range(10, 16)
    ]
    rows.append({"text": work + "\n\n", "meta": {}})
    rows.append({"text": f"{write_prose(20, 60)} {excerpt} {write_prose(21, 60)}", "meta": {}})
    rows.append({"text": f"{write_prose(22, 900)} {' '.join(work.split()[:70])}", "meta": {}})
    quoting, quote = write_prose(23, 900).split(), work.split()[100:160]
    for at in range(30, 900, 60):
        quoting[at : at + 6] = quote[10:16]
    quoting[400:460] = quote
    rows.append({"text": " ".join(quoting), "meta": {}})
    escaped = json.dumps(rows[0]).replace("/", "\\/")
    lines = [escaped, *map(json.dumps, rows[1:])]
    (raw / "a.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "web.yaml").write_text(CONFIG)
    run = tmp_path / "run"
    pipeline.run(tmp_path / "web.yaml", run, 0)
    by_address = planned(run, tmp_path, urls=["https://example.org/0/"])
    assert by_address.taken["line"].to_pylist() == [1, 3, 5]
    (tmp_path / "work.txt").write_text(work)
    by_text = planned(run, tmp_path, texts=["work.txt"], urls=["https://example.com/none"])
    assert by_text.taken["line"].to_pylist() == [7, 8]
    assert by_text.nothing == ("https://example.com/none",)
    assert ["passage" in told.why for told in by_text.related] == [True, True]
    assert by_text.related[1].why.endswith("6.5% of the document and 1.5% of the text match")


def test_claims_by_work(small_run: Any, tmp_path: Path) -> None:
    """Text matches are taken; other evidence is only told."""
    run = tmp_path / "run"
    shutil.copytree(small_run.directory, run)
    keys = [row["doc_key"] for row in kept(run)]
    part = "evidence.parquet/000000.parquet"
    schema = pq.read_schema(run / part)
    rows = [_evidence(schema, keys[3], "text_match"), _evidence(schema, keys[4], "title_author")]
    _replace(run, part, pa.Table.from_pylist(rows, schema=schema))
    later = [_evidence(schema, keys[6], "text_match")]
    output = parquet_output("", pa.Table.from_pylist(later, schema=schema))
    storage.publish(run / "rescans/late/evidence.parquet", output.data)
    storage.publish(run / "rescans/late/manifest.json", b"{}")
    plan = planned(run, tmp_path, works=["w1", "w2"])
    assert set(plan.taken["doc_key"].to_pylist()) == {keys[3], keys[6]}
    assert [(told.key, "no text match" in told.why) for told in plan.related] == [
        (keys[4].hex(), True)
    ]
    assert plan.nothing == ("works: w2",)
    apply(plan, SIGNED)
    found = pq.read_table(run / "evidence.parquet").to_pylist()
    assert [(row["seen"], row["attributes"]) for row in found] == [
        ("", '{"words":70}'),
        ("a title", '{"note":"quoted","words":70}'),
    ]
    verify_run(run)


def _evidence(schema: pa.Schema, key: bytes, detector: str) -> dict[str, Any]:
    in_text = detector == "text_match"
    value = dict.fromkeys(schema.names)
    return value | {
        "evidence_id": f"{key.hex()}-p0", "doc_key": key, "detector": detector, "rule": "",
        "kind": "passage", "target": "w1", "work_id": "w1", "score": 1.0,
        "seen": "some words of it" if in_text else "a title", "byte_offset": 0,
        "byte_length": 90 if in_text else 0, "attributes": '{"note":"quoted","words":70}',
    }  # fmt: skip


def _replace(run: Path, path: str, table: pa.Table) -> None:
    """Another published table, with all manifests."""
    output = parquet_output(path, table)
    done = storage.publish(run / path, output.data)
    for name in ("evidence",):
        place = manifest_path(run, name)
        manifest = read_manifest(place)
        assert manifest is not None
        shard = manifest.find(path)
        new = type(shard)(
            path=path, size=done.size, hash=done.hash, content_hash=shard.content_hash
        )
        write_manifest(place, replace_shards(manifest, {path: new}))
    top = read_sealed(run / "manifest.json")
    for file in top["files"]:
        if file["path"] in (path, "manifests/evidence.json"):
            file["hash"] = hash_file(run / file["path"])
    write_sealed(run / "manifest.json", top)


def test_a_work_needs_evidence_of_works(masked: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing here matches"):
        planned(masked, tmp_path, "c9", works=["w1"])
