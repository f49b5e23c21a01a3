"""Contained documents through whole runs, against sets of shingles in plain Python."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from dedup.containment import sample_shingles
from dedup.presets import PRESETS, shingles
from pipeline.core.hashes import tree_hash
from pipeline.engine import levels
from pipeline.runs.clusters import find_siblings
from pipeline.stages import containment
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork

SHARE = 0.9
WORDS = [f"w{n:x}" for n in range(4_000)]


def make_texts() -> list[str]:
    """Texts, parts of them, some with words changed, parts of parts, and one text twice."""
    draw = random.Random(8)
    texts = [draw.choices(WORDS, k=draw.randint(90, 400)) for _ in range(70)]
    for _ in range(60):
        whole = draw.choice(texts)
        size = draw.randint(min(80, len(whole)), len(whole))
        start = draw.randint(0, len(whole) - size)
        part = whole[start : start + size]
        for _ in range(draw.choice([0, 0, 1, 3, 9])):
            part[draw.randrange(size)] = "changed"
        texts.append(part)
    draw.shuffle(texts)
    return [" ".join(words) for words in [*texts, texts[0]]]


TEXTS = make_texts()


def expected_ends() -> dict[int, int]:
    """Which document stays for each that goes, as if every pair were compared."""
    sets = [set(shingles(text, PRESETS["slimpajama"])) for text in TEXTS]
    order = sorted(range(len(TEXTS)), key=lambda n: (-len(TEXTS[n]), n))
    gone: dict[int, int] = {}
    for place, member in enumerate(order):
        shares = [
            (-len(sets[member] & sets[longer]) / len(sets[member]), longer)
            for longer in order[:place]
            if longer not in gone
        ]
        if shares and -min(shares)[0] >= SHARE:
            gone[member] = min(shares)[1]
    return gone


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("texts")
    for shard in range(3):
        lines = (json.dumps({"text": text, "n": n}) + "\n" for n, text in enumerate(TEXTS))
        chosen = list(lines)[shard * 50 : shard * 50 + 50]
        (place / f"{shard}.jsonl").write_text("".join(chosen))
    return {
        "name": "parts",
        "seed": 3,
        "inputs": [{"name": "web", "path": f"{place}/*.jsonl"}],
        "clean": {"min_length": 0},
        "dedup": {"preset": "none", "containment": {"drop": True, "min_share": SHARE}},
        "pack": {"max_sequence_length": 64},
    }


@pytest.fixture(scope="module")
def plain(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("plain") / "run"
    pipeline.run(config, run, 0)
    return run


def read_ends(run: Path) -> tuple[dict[int, int], list[dict[str, Any]]]:
    """Which document stays for each that goes, and the rows of clusters.parquet."""
    table = pq.read_table(run / "documents.parquet")
    numbers = {
        key: int(Path(path).stem) * 50 + line - 1
        for key, path, line in zip(
            table["doc_key"].to_pylist(),
            pq.read_table(run / "sources.parquet")["path"].take(table["path_id"]).to_pylist(),
            table["line"].to_pylist(),
            strict=True,
        )
    }
    rows = table.filter(pc.equal(table["state"], "duplicate")).to_pylist()
    assert {row["reason"] for row in rows} == {"contained_duplicate"}
    ends = {numbers[row["doc_key"]]: numbers[row["representative"]] for row in rows}
    return ends, pq.read_table(run / "clusters.parquet").to_pylist()


def test_those_go_that_a_longer_one_has_and_no_others(plain: Path) -> None:
    """But for short ones without a sampled shingle, of which there are none here."""
    ends, rows = read_ends(plain)
    expected = expected_ends()
    assert ends.keys() == expected.keys()
    assert len(ends) > 25
    sets = [set(shingles(text, PRESETS["slimpajama"])) for text in TEXTS]
    for member, kept in ends.items():  # the share may be that of another one that stays, too
        assert kept not in ends
        assert len(sets[member] & sets[kept]) >= SHARE * len(sets[member])
    shares = sorted(len(sets[m] & sets[k]) / len(sets[m]) for m, k in ends.items())
    assert sorted(row["share"] for row in rows) == pytest.approx(shares)
    assert {row["kind"] for row in rows} == {"contained"}
    verify_run(plain)


@pytest.mark.parametrize("cut", ["tasks", "merges", "workers"])
def test_how_it_is_divided_changes_nothing(
    cut: str, config: dict[str, Any], plain: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    if cut != "workers":
        config = config | {"read": {"task_bytes": 65_536}}
        monkeypatch.setattr(containment, "_ENTRY_BYTES", 1 << 26)
    if cut == "merges":
        monkeypatch.setattr(levels, "MOST_SHARDS", 2)
        monkeypatch.setattr(levels, "MOST_TOGETHER", 2)
    run = tmp_path / "run"
    pipeline.run(config, run, 2 if cut == "workers" else 0)
    for place in ("clusters.parquet", "documents.parquet"):
        tables = [pq.read_table(root / place) for root in (plain, run)]
        assert tables[0].equals(tables[1])
    assert tree_hash(run / "hdf5") == tree_hash(plain / "hdf5")
    for place in ("merged_samples", "merged_containers"):
        assert (run / place).exists() == (cut == "merges")


def test_commands_say_what_contains_it(plain: Path) -> None:
    row = pq.read_table(plain / "clusters.parquet").to_pylist()[0]
    told = prep_in_fork("explain", plain, row["member"].hex())
    assert told.code == 0, told.err
    assert f"{100 * row['share']:.1f} %" in told.out and row["kept"].hex() in told.out
    seen = prep_in_fork("inspect", plain, "--kind", "contained")
    assert seen.code == 0 and "51 contained" in seen.out, seen


def test_with_near_duplicates_those_go_first(config: dict[str, Any], tmp_path: Path) -> None:
    """What resembles a contained document leads to that, and on to one that stays."""
    both = config | {"dedup": config["dedup"] | {"preset": "slimpajama"}}
    pipeline.run(both, tmp_path / "run", 0)
    rows = pq.read_table(tmp_path / "run" / "clusters.parquet").to_pylist()
    kinds = {row["kind"] for row in rows}
    assert kinds >= {"contained", "near"}
    leads_to = {row["member"]: row["kept"] for row in rows}
    for kept in leads_to.values():
        while kept in leads_to:
            kind = next(row["kind"] for row in rows if row["member"] == kept)
            assert kind == "contained"
            kept = leads_to[kept]
    assert all((row["share"] is None) == (row["kind"] != "contained") for row in rows)


def test_a_document_without_sampled_shingles_stays(config: dict[str, Any], tmp_path: Path) -> None:
    """What the docs say can be missed: none of its shingles is among one in so many."""
    lines = (f"Line {n} of few words." for n in range(1_000))
    text = next(line for line in lines if not len(sample_shingles([line], PRESETS["slimpajama"])))
    whole = f"{text} {TEXTS[0]}"
    lines = (json.dumps({"text": each}) + "\n" for each in (text, whole))
    (tmp_path / "a.jsonl").write_text("".join(lines))
    few = config | {"inputs": [{"name": "web", "path": f"{tmp_path}/a.jsonl"}]}
    pipeline.run(few, tmp_path / "run", 0)
    assert pq.read_table(tmp_path / "run/documents.parquet")["state"].to_pylist() == ["kept"] * 2


def test_a_claim_on_a_part_reaches_the_whole_and_no_other_part(plain: Path) -> None:
    path, rows = plain / "clusters.parquet", pq.read_table(plain / "clusters.parquet").to_pylist()
    of_whole: dict[bytes, list[bytes]] = {}
    for row in rows:
        of_whole.setdefault(row["kept"], []).append(row["member"])
    whole, members = next(item for item in of_whole.items() if len(item[1]) > 1)
    (found,) = find_siblings(path, members[:1], only_verified=True).tied
    assert (found.key, found.kind, found.is_container) == (whole, "contained", True)
    tied = find_siblings(path, [whole], only_verified=True).tied
    assert {sibling.key for sibling in tied} == set(members)


def test_a_takedown_of_a_part_takes_the_whole_and_what_is_like_it(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Not what else these hold; and a claim on more of them never takes less."""
    draw = random.Random(4)
    words = draw.choices(WORDS, k=1_000)
    texts = {
        "whole": words,
        "near": [*words[:990], "changed", *words[991:]],
        "part": words[:300],
        "same part": words[:300],
        "other part": words[500:800],
    }
    lines = (json.dumps({"text": " ".join(w), "id": name}) + "\n" for name, w in texts.items())
    (tmp_path / "a.jsonl").write_text("".join(lines))
    few = config | {
        "inputs": [{"name": "web", "path": f"{tmp_path}/a.jsonl"}],
        "dedup": config["dedup"] | {"preset": "slimpajama"},
    }
    pipeline.run(few, tmp_path / "run", 0)
    names = dict(zip(range(1, 6), texts, strict=True))

    def taken(*lines: int) -> dict[str, str]:
        claim = tmp_path / "claim.yaml"
        documents = [f"a.jsonl:{line}" for line in lines]
        claim.write_text(
            "id: c1\nclaimant: X\nreceived: 2026-03-01\nbasis: a\nnote: ''\n"
            f"what: {{documents: {json.dumps(documents)}}}\n"
        )
        ended = prep_in_fork("takedown", claim, "--run", tmp_path / "run", "--plan", "--json")
        assert ended.code == 0, ended.err
        return {names[d["line"]]: d["role"] for d in json.loads(ended.out)["taken"]}

    part = {"part": "named", "same part": "same_text", "whole": "whole", "near": "whole"}
    assert taken(3) == part
    assert taken(5) == {"other part": "named", "whole": "whole", "near": "whole"}
    assert set(taken(1)) == set(taken(2)) == set(taken(2, 3)) == set(texts)


def test_what_an_earlier_run_has_in_a_longer_document_does_not_come_back(
    config: dict[str, Any], tmp_path: Path
) -> None:
    words = random.Random(5).choices(WORDS, k=600)
    whole, part, other = " ".join(words), " ".join(words[:300]), " ".join(WORDS[:200])
    dedup = {"preset": "slimpajama", "containment": {"drop": True}}
    for name, texts, indexes in (
        ("first", (whole, part), []),
        ("second", (part, other), [str(tmp_path / "first")]),
    ):
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
        inputs = [{"name": "web", "path": f"{tmp_path}/{name}.jsonl"}]
        one = config | {"inputs": inputs, "dedup": dedup | {"indexes": indexes}}
        pipeline.run(one, tmp_path / name, 0)
        verify_run(tmp_path / name)
    table = pq.read_table(tmp_path / "second" / "documents.parquet")
    assert table["state"].to_pylist() == ["duplicate", "kept"]
    assert table["reason"].to_pylist()[0] == "exact_duplicate"
    first = pq.read_table(tmp_path / "first" / "documents.parquet")["doc_key"].to_pylist()
    assert table["representative"].to_pylist()[0] == first[1]


def test_explain_names_the_size_that_counts(config: dict[str, Any], tmp_path: Path) -> None:
    """Of a cluster of which one document is a part of the kept one."""
    words = random.Random(6).choices(WORDS, k=600)
    texts = (words, [*words[:595], "changed", *words[596:]], words[:300])
    lines = (json.dumps({"text": " ".join(text)}) + "\n" for text in texts)
    (tmp_path / "a.jsonl").write_text("".join(lines))
    one = config | {
        "inputs": [{"name": "web", "path": f"{tmp_path}/a.jsonl"}],
        "dedup": {"preset": "slimpajama", "containment": {"drop": True}},
        "mixture": {"cluster_weights": {2: 5, 3: 7}},
    }
    pipeline.run(one, tmp_path / "run", 0)
    table = pq.read_table(tmp_path / "run" / "documents.parquet")
    (key,) = table.filter(pc.equal(table["state"], "kept"))["doc_key"].to_pylist()
    explained = prep_in_fork("explain", tmp_path / "run", key.hex())
    assert "counts 5 times, by mixture.cluster_weights for a cluster of 2 documents" in (
        " ".join(explained.out.split())
    )
