"""Documents that a longer one of an earlier run or index contains, against sets of shingles."""

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from dedup.presets import PRESETS, shingles
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.manifest import read_sealed, write_sealed
from pipeline.engine import levels
from pipeline.stages import containment
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork
from tests.pipeline.stages.test_containment import SHARE, TEXTS

PARTS = {"first": [*dict.fromkeys(TEXTS)][::3], "second": [*dict.fromkeys(TEXTS)][1::3]}
NEW = [*dict.fromkeys(TEXTS)][2::3]
CONTAINMENT = {"drop": True, "min_share": SHARE}


def write_texts(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def make_config(path: Path, indexes: tuple[Path, ...] = (), **dedup: Any) -> dict[str, Any]:
    settings = {"preset": "exact", "containment": CONTAINMENT, "max_source_share": 1}
    return {
        "name": "parts",
        "seed": 3,
        "inputs": [{"name": path.parent.name, "path": str(path)}],
        "clean": {"min_length": 0},
        "dedup": settings | {"indexes": [str(index) for index in indexes]} | dedup,
        "pack": {"max_sequence_length": 64},
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that know nothing of each other, `first` and `second`, and the texts of a third."""
    root = tmp_path_factory.mktemp("earlier")
    for name, texts in PARTS.items():
        write_texts(root / f"of_{name}" / "a.jsonl", texts)
        pipeline.run(make_config(root / f"of_{name}" / "a.jsonl"), root / name, 0)
    for shard in range(3):
        write_texts(root / "of_new" / f"{shard}.jsonl", NEW[shard * 20 : (shard + 1) * 20])
    return root


@pytest.fixture(scope="module")
def third(place: Path) -> Path:
    indexes = (place / "first", place / "second")
    pipeline.run(make_config(place / "of_new" / "*.jsonl", indexes), place / "third", 0)
    return place / "third"


def texts_by_key(run: Path, texts: list[str]) -> dict[bytes, str]:
    keys = pq.read_table(run / "documents.parquet", columns=["doc_key"])["doc_key"].to_pylist()
    return dict(zip(keys, texts, strict=True))


def expected_ends() -> dict[str, set[str]]:
    """By new text that goes, the texts that may stand for it, if every pair were compared; those of
    earlier runs, whether contained there or not, come before new ones of the same length."""
    every = [*PARTS["first"], *PARTS["second"], *NEW]
    rank = {text: (-len(text), number) for number, text in enumerate(every)}
    sets = {text: set(shingles(text, PRESETS["slimpajama"])) for text in every}
    gone: dict[str, set[str]] = {}
    for text in sorted(NEW, key=rank.__getitem__):
        wholes = {
            other
            for other in every
            if rank[other] < rank[text]
            and other not in gone
            and len(sets[text] & sets[other]) >= SHARE * len(sets[text])
        }
        if wholes:
            gone[text] = wholes
    return gone


def test_parts_of_earlier_documents_go_and_no_others(place: Path, third: Path) -> None:
    expected = expected_ends()
    owners = {"first": PARTS["first"], "second": PARTS["second"], "": NEW}
    texts = {
        name: texts_by_key(place / (name or "third"), of_name) for name, of_name in owners.items()
    }
    rows = pq.read_table(third / "clusters.parquet").to_pylist()
    assert {texts[""][row["member"]] for row in rows} == expected.keys()
    for row in rows:
        member, kept = texts[""][row["member"]], texts[row["index"]][row["kept"]]
        assert kept in expected[member]
        assert row["kind"] == "contained"
        assert (row["kept_source"] is None) == bool(row["index"])
        own, other = (set(shingles(text, PRESETS["slimpajama"])) for text in (member, kept))
        assert row["share"] == pytest.approx(len(own & other) / len(own))
    assert {row["index"] for row in rows} == {"first", "second", ""}
    table = pq.read_table(third / "documents.parquet")
    gone = table.filter(pc.equal(table["reason"], "contained_duplicate"))["doc_key"].to_pylist()
    assert {texts[""][key] for key in gone} == expected.keys()
    verify_run(third)


@pytest.mark.parametrize("cut", ["tasks", "merges", "workers"])
def test_how_it_is_divided_changes_nothing(
    cut: str, place: Path, third: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(place / "of_new" / "*.jsonl", (place / "first", place / "second"))
    if cut != "workers":
        config |= {"read": {"task_bytes": 65_536}}
        monkeypatch.setattr(containment, "_ENTRY_BYTES", 1 << 26)
    if cut == "merges":
        monkeypatch.setattr(levels, "MOST_SHARDS", 2)
        monkeypatch.setattr(levels, "MOST_TOGETHER", 2)
    pipeline.run(config, tmp_path / "run", 2 if cut == "workers" else 0)
    for name in ("clusters.parquet", "documents.parquet"):
        tables = [pq.read_table(root / name) for root in (third, tmp_path / "run")]
        assert tables[0].equals(tables[1])
    for name in ("merged_samples", "merged_containers"):
        assert (tmp_path / "run" / name).exists() == (cut == "merges")


def test_commands_name_the_earlier_run(third: Path) -> None:
    rows = pq.read_table(third / "clusters.parquet").to_pylist()
    row = next(row for row in rows if row["index"] == "first")
    told = prep_in_fork("explain", third, row["member"].hex())
    assert told.code == 0, told.err
    assert f"{100 * row['share']:.1f} %" in told.out and row["kept"].hex() in told.out
    assert "first" in told.out


def test_the_longer_one_stays_when_it_comes_later(tmp_path: Path) -> None:
    """What was kept stays kept, and a part in an earlier run says nothing of the whole."""
    write_texts(tmp_path / "old" / "a.jsonl", [TEXTS[0][:600]])
    write_texts(tmp_path / "new" / "a.jsonl", [TEXTS[0]])
    pipeline.run(make_config(tmp_path / "old" / "a.jsonl"), tmp_path / "first", 0)
    config = make_config(tmp_path / "new" / "a.jsonl", (tmp_path / "first",))
    pipeline.run(config, tmp_path / "second", 0)
    for name in ("first", "second"):
        table = pq.read_table(tmp_path / name / "documents.parquet")
        assert table["state"].to_pylist() == ["kept"]


def test_an_index_that_grows(tmp_path: Path) -> None:
    """Batches lose parts of earlier ones, and a query names the batch and the share."""
    for name, texts in (*PARTS.items(), ("new", NEW)):
        write_texts(tmp_path / name / "a.jsonl", texts)
    options = ("--preset", "exact", "--max-source-share", "1", "--workers", 0)
    index = tmp_path / "index"
    for command, name, more in (
        ("build", "first", ("--containment", SHARE, *options)),
        ("add", "second", options[2:]),
    ):
        done = prep_in_fork("dedup", "index", command, index, tmp_path / name / "a.jsonl", *more)
        assert done.code == 0, done.err
    asked = prep_in_fork(
        "dedup", "index", "query", index, tmp_path / "new" / "a.jsonl", "--json", "--workers", 0
    )
    assert asked.code == 0, asked.err
    found = json.loads(asked.out)
    expected = expected_ends()
    assert {match["kind"] for match in found} == {"contained"}
    for match in found:
        assert match["share"] >= SHARE and match["jaccard"] < 1
        assert (
            PARTS["first" if match["batch"] == "000000" else "second"][match["batch_line"] - 1]
            in expected[NEW[match["line"] - 1]]
        )
    repeats = {text for text, wholes in expected.items() if not wholes <= {*NEW}}
    assert {NEW[match["line"] - 1] for match in found} == repeats


def test_what_a_takedown_took_contains_nothing(tmp_path: Path) -> None:
    one, other = sorted(PARTS["first"], key=len)[-2:]
    write_texts(tmp_path / "old" / "a.jsonl", [one, other])
    write_texts(tmp_path / "new" / "a.jsonl", [one[:600], other[:600]])
    pipeline.run(make_config(tmp_path / "old" / "a.jsonl"), tmp_path / "first", 0)
    (tmp_path / "claim.yaml").write_text(
        "id: c1\nclaimant: X\nreceived: 2026-03-01\nbasis: a\nnote: ''\n"
        "what: {documents: ['a.jsonl:1']}\n"
    )
    claim = ("takedown", tmp_path / "claim.yaml", "--run", tmp_path / "first")
    ended = prep_in_fork(*claim, "--apply", "--by", "Jane Doe")
    assert ended.code == 0, ended.err
    config = make_config(tmp_path / "new" / "a.jsonl", (tmp_path / "first",))
    pipeline.run(config, tmp_path / "second", 0)
    table = pq.read_table(tmp_path / "second" / "documents.parquet")
    assert table["state"].to_pylist() == ["kept", "duplicate"]


def test_an_index_without_samples_is_refused(tmp_path: Path, third: Path) -> None:
    write_texts(tmp_path / "old" / "a.jsonl", PARTS["first"])
    write_texts(tmp_path / "new" / "a.jsonl", NEW)
    plain = make_config(tmp_path / "old" / "a.jsonl", containment={"drop": False})
    pipeline.run(plain, tmp_path / "first", 0)
    config = make_config(tmp_path / "new" / "a.jsonl", (tmp_path / "first",))
    with pytest.raises(ConfigError, match=r"first: made without dedup\.containment, so it has no "):
        pipeline.run(config, tmp_path / "second", 0)
    pipeline.run(make_config(tmp_path / "old" / "a.jsonl"), tmp_path / "first", 0)
    pipeline.run(config, tmp_path / "second", 0)
    path = tmp_path / "first" / "manifests" / "samples.json"
    whole = path.read_bytes()
    value = read_sealed(path)
    write_sealed(path, value | {"fields": value["fields"] | {"version": 1}})
    with pytest.raises(ConfigError, match=r"first: its samples are of version 1, here of version "):
        pipeline.run(config, tmp_path / "another", 0)
    path.write_bytes(whole)
    cleaned = prep_in_fork("clean-up", tmp_path / "first")
    assert cleaned.code == 0, cleaned.err
    with pytest.raises(InputError, match=r"samples were removed by clean-up; run it again"):
        pipeline.run(config, tmp_path / "another", 0)
