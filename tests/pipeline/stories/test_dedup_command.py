"""`prep dedup`: kept records byte for byte in every format, what it prints, its upkeep."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import zstd
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import files_below, hash_file, tree_hash
from pipeline.sources import files
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork
from tests.pipeline.raw_shards import OPTIONS, Prep, Raw, line, near
from tests.stages import stages_by_default

DEDUP_STAGES = [*stages_by_default("dedup")]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, write_prose: Callable[..., str]) -> Raw:
    """Read only."""
    return Raw(tmp_path_factory.mktemp("raw") / "corpus", write_prose)


@pytest.fixture(scope="module")
def kept(raw: Raw, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of it; read only."""
    out = tmp_path_factory.mktemp("kept") / "kept"
    ended = prep_in_fork("dedup", raw.root, "--out", out, *OPTIONS)
    assert ended.code == 0, ended.err
    return out


@pytest.fixture
def own(kept: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    import shutil

    return Path(shutil.copytree(kept, tmp_path / "kept"))


def states(out: Path) -> dict[tuple[str, int], tuple[str, str]]:
    """(path, ordinal) -> state and reason."""
    paths = pq.read_table(out / "sources.parquet")["path"].to_pylist()
    seen: Counter[str] = Counter()
    found = {}
    for row in pq.read_table(out / "documents.parquet").to_pylist():
        path = paths[row["path_id"]]
        found[path, seen[path]] = (row["state"], row["reason"])
        seen[path] += 1
    return found


def test_every_kept_record_is_copied_byte_for_byte(raw: Raw, kept: Path) -> None:
    """The lines of the raw file in their order, without those that went; nothing is rewritten."""
    records = kept / "records"
    ends = states(kept)
    read: dict[str, tuple[list[bytes], Callable[[bytes], bytes]]] = {
        "a.jsonl": (raw.plain, bytes),
        "b.jsonl.zst": (raw.zst, zstd.decompress),
        "sub/c.jsonl.gz": (raw.gz, gzip.decompress),
    }
    for path, (lines, unpack) in read.items():
        there = [one for one in lines if one.strip()]
        wanted = [one for i, one in enumerate(there) if ends[path, i][0] == "kept"]
        assert 0 < len(wanted) < len(there)
        found = unpack((records / path).read_bytes())
        assert found == b"\n".join(wanted) + (
            b"\n" if wanted[-1] != lines[-1] or path != "a.jsonl" else b""
        )
    rows = [i for i in range(12) if ends["sub/d.parquet", i][0] == "kept"]
    table = pq.read_table(records / "sub/d.parquet")
    assert table.equals(raw.rows.take(rows)) and 0 < len(rows) < 12
    assert table.schema.metadata[b"origin"] == b"a test"
    assert {p.relative_to(records).as_posix() for p in records.rglob("*") if p.is_file()} == {
        p.relative_to(raw.root).as_posix() for p in raw.files
    }


def test_the_last_line_keeps_having_no_newline(
    tmp_path: Path, prep: Prep, write_prose: Callable[..., str]
) -> None:
    first, last = line(write_prose(1)), line(write_prose(2))
    for name, lines in (("kept.jsonl", [first, last]), ("gone.jsonl", [last, first])):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(b"\n".join(lines))
    assert prep("dedup", tmp_path / "raw", "--out", tmp_path / "out", "--workers", 0).code == 0
    copied = [(tmp_path / "out/records" / n).read_bytes() for n in ("gone.jsonl", "kept.jsonl")]
    assert sorted(copied) in ([b"", first + b"\n" + last], [b"", last + b"\n" + first]) or sorted(
        copied
    ) == sorted([last + b"\n", first + b"\n"])


def test_compression_is_deterministic(kept: Path) -> None:
    packed = (kept / "records/sub/c.jsonl.gz").read_bytes()
    assert packed[4:8] == b"\0\0\0\0", "the time in the gzip header"
    frame = (kept / "records/b.jsonl.zst").read_bytes()
    assert frame[4] & 0b100, "zstd frames carry a checksum"


def test_what_went_and_why(raw: Raw, kept: Path) -> None:
    counts = Counter(states(kept).values())
    assert counts["bad_record", "bad_json"] == 1 and counts["bad_record", "text_not_string"] == 1
    assert counts["duplicate", "exact_duplicate"] == 5, "`!` is no part of normalised text"
    assert counts["duplicate", "near_duplicate"] == 2
    assert ("dropped", "too_short") not in counts
    ends = states(kept)
    assert ends["a.jsonl", 2][0] == "kept", "an empty text never is a duplicate"
    texts = pa.ipc.open_file(kept / "documents/000000.arrow").read_all()["text"].to_pylist()
    assert "schÃ¶n &amp; gut" in texts, "no text is repaired"


def test_any_way_to_name_the_files_gives_the_same(
    raw: Raw, kept: Path, tmp_path: Path, prep: Prep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory, the files in any order, twice, globs: relative to the directory they share."""
    wanted = tree_hash(kept)
    ways: list[list[object]] = [
        [*reversed(raw.files), raw.files[0]],
        [raw.root / "*.jsonl*", raw.root / "sub", raw.root / "sub/../a.jsonl"],
    ]
    for number, way in enumerate(ways):
        out = tmp_path / str(number)
        ended = prep("dedup", *way, "--out", out, *OPTIONS)
        assert ended.code == 0, ended.err
        assert tree_hash(out) == wanted
    monkeypatch.chdir(raw.root)
    assert prep("dedup", ".", "--out", tmp_path / "there", *OPTIONS).code == 0
    assert tree_hash(tmp_path / "there") == wanted


def test_workers_change_nothing(
    raw: Raw, kept: Path, tmp_path: Path, prep: Prep, two_workers: int
) -> None:
    options = ("--workers", two_workers, "--max-bad-share", "20 %")
    ended = prep("dedup", raw.root, "--out", tmp_path / "two", *options)
    assert ended.code == 0, ended.err
    assert tree_hash(tmp_path / "two") == tree_hash(kept)


def test_memory_changes_no_result(raw: Raw, kept: Path, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "out"
    assert prep("dedup", raw.root, "--out", out, *OPTIONS, "--memory", "16 MiB").code == 0
    for name in (
        "clusters.parquet/000000.parquet",
        "documents.parquet/000000.parquet",
        "ledger.json",
        "records/a.jsonl",
    ):
        assert (out / name).read_bytes() == (kept / name).read_bytes()


def test_what_is_printed(raw: Raw, own: Path, prep: Prep) -> None:
    shown = prep("dedup", raw.root, "--out", own, *OPTIONS)
    assert shown.code == 0
    assert "slimpajama: char 13-grams, 9 bands x 13 rows" in shown.err and "0.9 92.9%" in shown.err
    for words in ("documents by source", "exact", "near", "files", "Wiki", "kept MB",
                  "everything was up to date: all 15 stages reused", "outputs: "):  # fmt: skip
        assert words in shown.out
    value = json.loads(prep("dedup", raw.root, "--out", own, *OPTIONS, "--json").out)
    assert value["directory"] == str(own) and value["reused"] == DEDUP_STAGES
    assert value["ledger"] == json.loads((own / "ledger.json").read_bytes())
    kinds = sum((Counter(v) for v in value["duplicates"].values()), Counter())
    assert kinds == {"exact": 5, "near": 2}
    duplicates = sum(s["duplicates"]["documents"] for s in value["ledger"]["sources"].values())
    assert duplicates == 7 and value["ledger"]["splits"] == {}


def test_other_ways_to_be_a_duplicate(raw: Raw, tmp_path: Path, prep: Prep) -> None:
    """A key, only exact copies, chains without verification."""

    def kinds(*options: object) -> dict[str, int]:
        out = tmp_path / "-".join(str(o).strip("-") for o in options)
        ended = prep("dedup", raw.root, "--out", out, *OPTIONS, "--json", *options)
        assert ended.code == 0, ended.err
        return sum((Counter(v) for v in json.loads(ended.out)["duplicates"].values()), Counter())

    assert kinds("--key", "url") == {"exact": 5, "near": 2, "key": 1}
    assert kinds("--preset", "exact") == {"exact": 6}
    assert kinds("--verify", "none")["near"] >= 2
    assert kinds("--threshold", 1) == {"exact": 6}


def test_an_earlier_run_is_compared_with(
    raw: Raw, kept: Path, tmp_path: Path, prep: Prep, write_prose: Callable[..., str]
) -> None:
    texts = [write_prose(100, 60), write_prose(5000), near(write_prose(1, 300))]
    (tmp_path / "new.jsonl").write_bytes(b"".join(line(t) + b"\n" for t in texts))
    out = tmp_path / "out"
    ended = prep("dedup", tmp_path / "new.jsonl", "--out", out, "--workers", 0, "--index", kept)
    assert ended.code == 0, ended.err
    assert (out / "records/new.jsonl").read_bytes() == line(texts[1]) + b"\n"
    table = pq.read_table(out / "clusters.parquet").to_pylist()
    assert [row["index"] for row in table] == ["kept", "kept"]


def test_upkeep_of_such_a_run(raw: Raw, own: Path, prep: Prep) -> None:
    """status, verify and clean-up know its story; a change afterwards rebuilds what it needs."""
    status = json.loads(prep("status", own, "--json").out)
    assert status["finished"] and [s["stage"] for s in status["stages"]] == DEDUP_STAGES
    names = [c["name"] for c in json.loads(prep("verify", own, "--json").out)]
    assert names == ["hashes", "ledger", "records"]
    before = {p: hash_file(own / p) for p in files_below(own / "records")
              if (own / p).exists()}  # fmt: skip
    assert prep("clean-up", own).code == 0
    assert not (own / "signatures").exists() and (own / "records/a.jsonl").exists()
    assert prep("verify", own).code == 0
    assert "everything was up to date" in prep("dedup", raw.root, "--out", own, *OPTIONS).out
    changed = prep("dedup", raw.root, "--out", own, *OPTIONS, "--preset", "exact")
    assert changed.code == 0 and "rebuilding" in changed.err
    assert prep("dedup", raw.root, "--out", own, *OPTIONS).code == 0
    assert before == {p: hash_file(own / p) for p in before}
    verify_run(own)


def test_status_while_not_finished(own: Path, prep: Prep) -> None:
    (own / "manifest.json").unlink()
    (own / "manifests/records.json").unlink()
    value = json.loads(prep("status", own, "--json").out)
    ends = {s["stage"]: s["state"] for s in value["stages"]}
    assert list(ends) == DEDUP_STAGES and not value["finished"]
    assert ends["records"] == "not started" and ends["keep"] == "done"


def test_the_page_of_clusters(kept: Path) -> None:
    page = (kept / "clusters.html").read_text(encoding="utf-8")
    assert "files/a.jsonl" in page and "slimpajama" in page
    assert str(kept) not in page


def test_damage_is_found_and_mended(raw: Raw, kept: Path, own: Path, prep: Prep) -> None:
    path = own / "records/sub/d.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=r"d\.parquet: damaged"):
        verify_run(own)
    assert prep("dedup", raw.root, "--out", own, *OPTIONS).code == 0
    assert tree_hash(own) == tree_hash(kept)


@pytest.mark.parametrize("name", ["a.jsonl", "sub/d.parquet", "b.jsonl.zst"])
def test_a_shard_that_changed_meanwhile_is_refused(
    name: str, tmp_path: Path, prep: Prep, write_prose: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing that is known of the file changed, so that only the copying itself can notice."""
    monkeypatch.setattr(files, "_stamp", lambda name: (Path(name).stat().st_size, "?"))
    raw = Raw(tmp_path / "corpus", write_prose)
    out = tmp_path / "out"
    assert prep("dedup", raw.root, "--out", out, *OPTIONS).code == 0
    path = raw.root / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (out / "records" / name).unlink()
    ended = prep("dedup", raw.root, "--out", out, *OPTIONS)
    assert ended.code == 3 and f"{name}: changed while this run read it" in ended.err
    path.unlink()


def test_the_output_may_stand_among_the_inputs(
    kept: Path, tmp_path: Path, prep: Prep, write_prose: Callable[..., str]
) -> None:
    """What stands in it is no input, however often the command runs."""
    root = Raw(tmp_path / "corpus", write_prose).root
    for _ in range(2):
        assert prep("dedup", root, "--out", root / "kept", *OPTIONS).code == 0
        assert tree_hash(root / "kept") == tree_hash(kept)


def test_dry_run_and_plan_state_what_is_found(
    raw: Raw, own: Path, corpus: Any, tmp_path: Path, prep: Prep
) -> None:
    fresh = prep("dedup", raw.root, "--out", tmp_path / "fresh", "--dry-run", "--preset", "fineweb")
    assert fresh.code == 0 and not (tmp_path / "fresh").exists()
    assert "4 raw shards" in fresh.out and "14 bands x 8 rows" in fresh.out
    value = json.loads(prep("dedup", raw.root, "--out", own, *OPTIONS, "--dry-run", "--json").out)
    assert [(s["stage"], s["state"]) for s in value] == [(s, "reuse") for s in DEDUP_STAGES]
    planned = prep("plan", corpus.config, "--out", tmp_path / "fresh")
    assert "slimpajama: char 13-grams, 9 bands x 13 rows: J=0.7 8.4%" in planned.out
    assert "a duplicate from exact J = 0.8" in planned.out
    none = prep("plan", corpus.config, "--out", tmp_path / "x", "--set", "dedup.preset=none")
    assert "dedup: none" in none.out


def test_kernels_are_compiled_once_and_the_user_is_told(
    raw: Raw, own: Path, prep: Prep, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dedup.find
    from pipeline.stories import kernels

    calls = []
    monkeypatch.setattr(dedup.find, "warm_up", lambda *_, **only: calls.append(only))
    monkeypatch.setattr(
        kernels, "ProcessPoolExecutor", lambda processes, *_: ThreadPoolExecutor(processes)
    )
    for first in (True, False):
        monkeypatch.setattr(kernels, "first_use", lambda _, first=first: first)
        ended = prep("dedup", raw.root, "--out", own, *OPTIONS)
        said = "note: compiling kernels for this machine, once: dedup" in ended.err
        assert said == first
    assert calls == [{"lines": False, "overlap": False, "containment": False}]
