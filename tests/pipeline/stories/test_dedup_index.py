"""`prep dedup index`: batches give what one run gives, old stays kept, answers name where it is."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.hashes import files_below, tree_hash
from pipeline.core.manifest import read_manifest, write_sealed
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork
from tests.slow import mark_slow

Prep = Callable[..., Any]
SHARDS = 4


def variant(text: str, number: int) -> str:
    """A near-duplicate whose words differ in two places that depend on `number`."""
    words = text.split(" ")
    for place in (number * 7 % len(words), number * 13 % len(words)):
        words[place] = f"changed{number}"
    return " ".join(words)


def record(text: str, number: int) -> bytes:
    meta = {"pile_set_name": ("Wiki", "Code")[number % 2], "url": f"https://example.org/{number}"}
    return json.dumps({"text": text, "meta": meta}).encode() + b"\n"


def texts_of(shard: int, prose: Callable[..., str]) -> Iterator[str]:
    """Ten families that occur in every shard, chains among them, exact copies, and texts apart."""
    for family in range(10):
        text = prose(family, 160)
        yield variant(text, shard) if family % 2 else text
        yield variant(variant(text, shard), shard + 5)
    for number in range(15):
        yield prose(1000 * (shard + 1) + number, 80)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, write_prose: Callable[..., str]) -> list[Path]:
    """Four shards of one directory; read only."""
    root = tmp_path_factory.mktemp("shards")
    paths = []
    for shard in range(SHARDS):
        paths.append(root / f"part-{shard}.jsonl")
        lines = [record(t, shard * 100 + i) for i, t in enumerate(texts_of(shard, write_prose))]
        paths[-1].write_bytes(b"".join(lines))
    return paths


@pytest.fixture(scope="module")
def index(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the first two shards and then the third, all named `crawl`; read only."""
    directory = tmp_path_factory.mktemp("index") / "idx"
    for command, files in (("build", shards[:2]), ("add", shards[2:3])):
        ended = prep_in_fork("dedup", "index", command, directory, *files, "--name", "crawl",
                             "--workers", 0)  # fmt: skip
        assert ended.code == 0, ended.err
    return directory


@pytest.fixture(scope="module")
def grown(index: Path, shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same index with the fourth shard as a third batch, undisturbed; read only."""
    directory = Path(shutil.copytree(index, tmp_path_factory.mktemp("grown") / "idx"))
    ended = prep_in_fork("dedup", "index", "add", directory, shards[3], "--workers", 0)
    assert ended.code == 0, ended.err
    return directory


@pytest.fixture
def own(index: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(index, tmp_path / "idx"))


def batch(index: Path, number: int) -> Path:
    return index / "batches" / f"{number:06d}"


def keys(run: Path) -> list[bytes]:
    """Document keys of a run, in the order of its dense indices."""
    paths = sorted((run / "documents").glob("*.arrow"))
    return [k for p in paths for k in pa.ipc.open_file(p).read_all()["doc_key"].to_pylist()]


def memberships(run: Path, earlier: list[bytes]) -> dict[str, set[frozenset[bytes]]]:
    """channel -> candidate edges, as pairs of document keys."""
    identity = [*earlier, *keys(run)]
    edges: dict[str, set[frozenset[bytes]]] = defaultdict(set)
    manifest = read_manifest(run / "manifests/bands.json")
    assert manifest is not None
    for task in manifest.tasks:
        table = pa.ipc.open_file(run / task.shards[0].path).read_all()
        member, bucket = (table[name].to_numpy() for name in ("member", "bucket"))
        for number in np.unique(bucket):
            there = [identity[m] for m in member[bucket == number]]
            edges[task.counters["channel"]] |= {
                frozenset((a, b)) for a in there for b in there if a != b
            }
    return edges


def components(edges: dict[str, set[frozenset[bytes]]]) -> set[frozenset[bytes]]:
    """What the edges of all channels connect."""
    of: dict[bytes, set[bytes]] = {}
    for a, b in (tuple(edge) for one in edges.values() for edge in one):
        joined = of.get(a, {a}) | of.get(b, {b})
        of |= dict.fromkeys(joined, joined)
    return {frozenset(group) for group in of.values()}


def test_batches_have_the_candidates_and_components_of_one_run(
    shards: list[Path], index: Path, tmp_path: Path, prep: Prep
) -> None:
    single = tmp_path / "single"
    ended = prep("dedup", *shards[:3], "--out", single, "--name", "crawl", "--workers", 0)
    assert ended.code == 0, ended.err
    whole = memberships(single, [])
    first = memberships(batch(index, 0), [])
    second = memberships(batch(index, 1), keys(batch(index, 0)))
    both = {channel: first[channel] | second[channel] for channel in {*first, *second}}
    assert len(whole) == 10 and both == whole
    assert first != whole and any(second[channel] - first[channel] for channel in second)
    assert components(both) == components(whole)
    table = pa.ipc.open_file(single / "components/000000.arrow").read_all()
    own: dict[int, set[bytes]] = defaultdict(set)
    for key, row in zip(keys(single), table.to_pylist(), strict=True):
        if row["task"]:
            own[row["component"]].add(key)
    assert components(both) == {frozenset(group) for group in own.values()}


def states(run: Path) -> dict[bytes, str]:
    table = pq.read_table(run / "documents.parquet", columns=["doc_key", "state"])
    return dict(zip(*(table[n].to_pylist() for n in ("doc_key", "state")), strict=True))


def test_a_document_once_kept_stays_kept(shards: list[Path], own: Path, prep: Prep) -> None:
    """Adding changes no byte of earlier batches; new documents go where an old one stands for them,
    whatever their keys, and never for one that had gone itself."""
    before = [tree_hash(batch(own, n)) for n in range(2)]
    ended = prep("dedup", "index", "add", own, shards[3], "--workers", 0, "--json")
    assert ended.code == 0, ended.err
    value = json.loads(ended.out)
    assert value["batch"] == "000002" and value["fresh"] and value["duplicates"]
    assert [tree_hash(batch(own, n)) for n in range(2)] == before
    kept = {k for n in range(2) for k, s in states(batch(own, n)).items() if s == "kept"}
    gone = {k for n in range(2) for k, s in states(batch(own, n)).items() if s != "kept"}
    rows = pq.read_table(batch(own, 2) / "clusters.parquet").to_pylist()
    old = [row for row in rows if row["index"]]
    assert len(old) >= 10 and {row["index"] for row in old} <= {"000000", "000001"}
    assert {row["kept"] for row in old} <= kept and not {row["kept"] for row in rows} & gone
    assert any(row["member"] < row["kept"] for row in old), "an older batch outranks smaller keys"
    verify_run(batch(own, 2))


def test_a_query_answers_with_old_identities(
    index: Path, shards: list[Path], tmp_path: Path, prep: Prep, write_prose: Callable[..., str]
) -> None:
    texts = [write_prose(77_000), variant(write_prose(1000, 80), 9), write_prose(77_001),
             write_prose(3000 + 3, 80)]  # fmt: skip
    (tmp_path / "new").mkdir()
    (tmp_path / "new/draft.jsonl").write_bytes(
        b"\n" + b"".join(record(t, i) for i, t in enumerate(texts))
    )
    pq.write_table(pa.table({"text": [write_prose(77_002), texts[1]]}), tmp_path / "new/x.parquet")
    before = tree_hash(index)
    asked = ("dedup", "index", "query", index, tmp_path / "new", "--workers", 0)
    ended = prep(*asked, "--json", "--out", tmp_path / "matches.jsonl")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    lines = (tmp_path / "matches.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found
    assert tree_hash(index) == before
    near, exact, row = found
    documents = pq.read_table(batch(index, 0) / "documents.parquet").to_pylist()
    (old,) = [d for d in documents if d["doc_key"].hex() == near["document"]]
    assert (near["file"], near["line"], near["row"]) == ("draft.jsonl", 3, None)
    assert near["kind"] == "near" and 0.8 <= near["jaccard"] < 1
    assert (near["batch"], near["batch_file"], near["batch_line"]) == ("000000", "part-0.jsonl", 21)
    assert near["source"] == old["source"] == "Wiki" and old["line"] == 21
    assert (exact["line"], exact["kind"], exact["jaccard"]) == (5, "exact", 1.0)
    assert (exact["batch"], exact["batch_file"], exact["batch_line"]) == (
        "000001",
        "part-2.jsonl",
        24,
    )
    assert (row["file"], row["line"], row["row"]) == ("x.parquet", None, 1)
    assert row["document"] == near["document"]
    shown = prep(*asked).out
    for words in ("draft.jsonl:3", "x.parquet:row 1", near["document"], "part-0.jsonl:21",
                  "3 of 6 documents repeat the index"):  # fmt: skip
        assert words in shown
    place = tmp_path / "work"
    assert prep(*asked, "--work", place).out == shown and (place / "manifest.json").exists()
    assert "signatures: reused" in prep(*asked, "--work", place).err


def test_nothing_depends_on_workers_or_the_place(
    index: Path, shards: list[Path], tmp_path: Path, prep: Prep, two_workers: int
) -> None:
    other = tmp_path / "elsewhere"
    for command, files, workers in (("build", shards[1::-1], 0), ("add", shards[2:3], two_workers)):
        ended = prep("dedup", "index", command, other, *files, "--name", "crawl",
                     "--workers", workers)  # fmt: skip
        assert ended.code == 0, ended.err
    for number in range(2):
        assert tree_hash(batch(other, number)) == tree_hash(batch(index, number))
    assert (other / "index.json").read_bytes() == (index / "index.json").read_bytes()


def test_no_published_file_knows_where_it_stands(index: Path, shards: list[Path]) -> None:
    published = [index / "index.json"]
    for number in range(2):
        run = batch(index, number)
        published += [run / p for p in files_below(run)]
    for path in published:
        data = path.read_bytes()
        for place in (index, shards[0].parent):
            assert str(place).encode() not in data, path


POINTS = ("storage.publish.renamed@1", "task.start.clean@1", "task.start.bands@4",
          "storage.publish.written@17", "task.start.clusters@1", "task.start.account@1",
          "*@60")  # fmt: skip


@pytest.mark.parametrize("point", mark_slow(POINTS, *POINTS[1::2]))
def test_an_add_killed_anywhere_goes_on(
    point: str, own: Path, shards: list[Path], grown: Path, prep: Prep
) -> None:
    """The same command finishes it, with the bytes of an undisturbed one; meanwhile the index
    answers from its finished batches."""
    add = ("dedup", "index", "add", own, shards[3], "--workers", 0)
    killed = prep_in_fork(*add, fault=f"{point}=kill")
    assert killed.code == -9
    asked = prep("dedup", "index", "query", own, shards[3], "--workers", 0, "--json")
    assert asked.code == 0 and {m["batch"] for m in json.loads(asked.out)} <= {"000000", "000001"}
    if batch(own, 2).exists():
        other = prep("dedup", "index", "add", own, shards[0].parent, "--workers", 0)
        assert other.code == 3 and "begun with other files or another --name" in other.err
    assert prep(*add).code == 0
    assert tree_hash(batch(own, 2)) == tree_hash(batch(grown, 2))
    assert (own / "index.json").read_bytes() == (grown / "index.json").read_bytes()
    again = prep(*add)
    assert again.code == 0 and "batch 000002 already holds exactly these files" in again.out


def test_a_build_killed_goes_on(shards: list[Path], tmp_path: Path, prep: Prep) -> None:
    directory = tmp_path / "idx"
    build = ("dedup", "index", "build", directory, *shards[:2], "--workers", 0)
    for point in ("storage.publish.written@1", "task.start.keep@1"):
        assert prep_in_fork(*build, fault=f"{point}=kill").code == -9
    asked = prep("dedup", "index", "query", directory, shards[3])
    assert asked.code == 3 and "no finished batch" in asked.err
    assert prep("dedup", "index", "add", directory, shards[3]).code == 3
    assert prep(*build).code == 0
    assert "batch 000000 already holds exactly these files" in prep(*build).out


def test_an_abandoned_batch_can_be_deleted(own: Path, shards: list[Path], prep: Prep) -> None:
    add = ("dedup", "index", "add", own, shards[3], "--workers", 0)
    assert prep_in_fork(*add, fault="task.start.keep@1=kill").code == -9
    shutil.rmtree(batch(own, 2))
    ended = prep("dedup", "index", "add", own, shards[3], "--name", "later", "--workers", 0)
    assert ended.code == 0, ended.err
    names = [b["name"] for b in json.loads((own / "index.json").read_bytes())["batches"]]
    assert names == ["crawl", "crawl", "later"]


def test_what_is_refused(own: Path, shards: list[Path], tmp_path: Path, prep: Prep) -> None:
    def told(*arguments: object) -> tuple[int, str]:
        ended = prep("dedup", "index", *arguments)
        return ended.code, ended.err

    before = tree_hash(own)
    assert told("add", tmp_path / "nowhere", shards[3]) == (
        3, f"prep: {tmp_path / 'nowhere'}: no index here; `prep dedup index build` makes one\n"
    )  # fmt: skip
    code, err = told("build", own, *shards[:2], "--name", "crawl", "--preset", "fineweb")
    assert code == 2 and "an index with another preset" in err
    code, err = told("build", own, shards[3])
    assert code == 2 and "`prep dedup index add` adds these" in err
    code, err = told("add", own, tmp_path / "x.jsonl")
    assert code == 3 and "found nothing" in err
    other = tmp_path / "part-0.jsonl"
    other.write_bytes(record("quite another text of the same name", 1))
    code, err = told("add", own, other, "--name", "crawl")
    assert code == 2 and "holds crawl/part-0.jsonl already; give these files another --name" in err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    code, err = told("build", tmp_path / "full", shards[0])
    assert code == 2 and "not empty and not an index" in err
    assert tree_hash(own) == before
    assert prep("dedup", "index", "add", own, other, "--workers", 0).code == 0


def test_damage_is_named(own: Path, shards: list[Path], prep: Prep) -> None:
    query = ("dedup", "index", "query", own, shards[3], "--workers", 0)
    assert prep("clean-up", batch(own, 0)).code == 0
    cleaned = prep(*query)
    assert cleaned.code == 3 and "were removed by clean-up" in cleaned.err
    shutil.move(batch(own, 0), own / "away")
    gone = prep(*query)
    assert gone.code == 3 and "missing or not finished, but a later batch relies on it" in gone.err
    value = json.loads((own / "index.json").read_bytes())
    write_sealed(
        own / "index.json", {**{k: v for k, v in value.items() if k != "seal"}, "format": 2}
    )
    assert "of format 2, expected 1" in prep(*query).err
    (own / "index.json").write_text("{}")
    damaged = prep(*query)
    assert damaged.code == 4 and "index.json: missing or damaged" in damaged.err


def test_several_indexes_and_runs_can_be_chosen(
    index: Path, shards: list[Path], tmp_path: Path, prep: Prep
) -> None:
    """By `--index`, and by `dedup.indexes` of a config; the answer says which."""
    one = tmp_path / "one"
    assert prep("dedup", shards[3], "--out", one, "--workers", 0).code == 0
    options = ("--index", index, "--index", one, "--workers", 0)
    ended = prep("dedup", shards[3], "--out", tmp_path / "both", *options, "--max-source-share", 1)
    assert ended.code == 0 and "no record is new: every document is a duplicate" in ended.out
    assert (tmp_path / "both/records" / shards[3].name).read_bytes() == b""
    rows = pq.read_table(tmp_path / "both/clusters.parquet", columns=["index"])["index"].to_pylist()
    assert set(rows) == {"idx/000000", "one"}
    config = tmp_path / "c.yaml"
    shutil.copytree(index, tmp_path / "old")
    config.write_text(json.dumps({
        "inputs": [{"name": "x", "path": str(shards[3])}],
        "clean": {"min_length": 0}, "dedup": {"indexes": ["old"], "verify": "estimate"},
        "pack": {"max_sequence_length": 64},
    }))  # fmt: skip
    assert prep("run", config, "--out", tmp_path / "run", "--workers", 0).code == 0
    rows = pq.read_table(tmp_path / "run/clusters.parquet", columns=["index"])["index"].to_pylist()
    assert "old/000000" in rows
    other = prep(
        "dedup", shards[3], "--out", tmp_path / "x", "--index", index, "--preset", "strict"
    )
    assert other.code == 2 and "made with another dedup.preset" in other.err


def test_an_index_without_verification(shards: list[Path], tmp_path: Path, prep: Prep) -> None:
    directory = tmp_path / "idx"
    for command, file in (("build", shards[0]), ("add", shards[1])):
        options = ("--verify", "none") if command == "build" else ()
        assert prep("dedup", "index", command, directory, file, "--workers", 0, *options).code == 0
    assert not (batch(directory, 1) / "signatures").exists()
    ended = prep("dedup", shards[2], "--out", tmp_path / "out", "--index", directory)
    assert ended.code == 2 and "keeps no signatures" in ended.err


def test_a_batch_may_hold_nothing_new(
    own: Path, shards: list[Path], tmp_path: Path, prep: Prep
) -> None:
    """Every document repeats the index, or there is none at all."""
    (tmp_path / "copy.jsonl").write_bytes(shards[0].read_bytes())
    (tmp_path / "empty.jsonl").touch()
    for number, name in enumerate(("copy", "empty"), 2):
        file = tmp_path / f"{name}.jsonl"
        ended = prep("dedup", "index", "add", own, file, "--workers", 0, "--json")
        assert ended.code == 0, ended.err
        ledger = json.loads(ended.out)["ledger"]
        assert sum(s["kept"]["documents"] for s in ledger["sources"].values()) == 0
        verify_run(batch(own, number))
