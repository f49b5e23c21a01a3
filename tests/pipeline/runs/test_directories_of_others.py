"""What stands in the output directory and is of no run is neither deleted nor passed over."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pipeline
from pipeline.core.hashes import tree_hash
from tests.forked import Ended, prep_in_fork

TEXTS = [f"Text {n} of the words that a person keeps in a directory. " * 6 for n in range(9)]


def write(path: Path, texts: list[str] = TEXTS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    config = {"name": "a", "inputs": [{"name": "a", "path": str(write(place / "a.jsonl"))}]}
    pipeline.run(config, place / "run", 0)
    return place


Words = Callable[[Path], list[object]]
COMMANDS: dict[str, Words] = {
    "run": lambda place: [
        "run",
        "quickstart",
        "--set",
        f"inputs=[{{name: a, path: {place}/a.jsonl}}]",
    ],
    "dedup": lambda place: ["dedup", place / "a.jsonl"],
    "clean": lambda place: ["clean", place / "a.jsonl"],
    "screen": lambda place: ["screen", place / "a.jsonl"],
    "export": lambda place: ["export", place / "run"],
    "repack": lambda place: ["repack", place / "run", "--msl", 64],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "theirs", ["documents/mine.jsonl", "runs/old/report.html", "manifest.json"]
)
def test_nothing_of_others_is_deleted(
    command: str, theirs: str, finished: Path, tmp_path: Path
) -> None:
    mine = write(tmp_path / "home" / theirs)
    before = mine.read_bytes()
    ended = prep_in_fork(*COMMANDS[command](finished), "--out", tmp_path / "home", "--workers", 0)
    assert ended.code == 2, ended.err
    said = (
        f"prep: {tmp_path}/home: holds files that no run wrote, where a run writes its own "
        f"({theirs}); choose an empty directory for --out"
    )
    assert ended.err.splitlines()[-1] == said
    assert mine.read_bytes() == before
    assert [p for p in (tmp_path / "home").rglob("*") if p.is_file() and p.name != ".lock"] == [
        mine
    ]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_a_run_of_another_command_stays(command: str, finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished / "run", tmp_path / "run")
    before = tree_hash(run)
    ended = prep_in_fork(*COMMANDS[command](finished), "--out", run, "--workers", 0)
    assert ended.code == 2
    said = f"{run}: holds a run of `prep run`; choose another --out"
    of_repack = f"{run}: holds another run; give a new or empty directory"
    assert (of_repack if command == "repack" else said) in ended.err
    assert tree_hash(run) == before


def test_files_of_others_may_stand_beside(finished: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "home" / "notes" / "mine.jsonl")
    ended = prep_in_fork("clean", finished / "a.jsonl", "--out", tmp_path / "home", "--workers", 0)
    assert ended.code == 0 and mine.exists(), ended.err


@pytest.mark.parametrize(
    "lost", [("journal",), ("journal", "manifest.json"), ("journal/removed.json",)]
)
def test_a_run_is_known_without_its_journal(
    lost: tuple[str, ...], finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished / "run", tmp_path / "run")
    before = tree_hash(run)
    for name in lost:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ended = again(finished, run)
    assert ended.code == 0, ended.err
    assert tree_hash(run) == before


def again(finished: Path, run: Path) -> Ended:
    config = f"inputs=[{{name: a, path: {finished}/a.jsonl}}]"
    (run.parent / "c.yaml").write_text(f"name: a\n{config.replace('=', ': ', 1)}\n")
    return prep_in_fork("run", run.parent / "c.yaml", "--out", run, "--workers", 0)


def test_an_input_where_the_run_is_to_be_is_an_error(tmp_path: Path) -> None:
    """Some of the input is elsewhere, so that the run would find something."""
    write(tmp_path / "one.jsonl")
    for name in ("data", "documents"):
        mine = write(tmp_path / "home" / name / "c.jsonl")
        paths = f"inputs=[{{name: a, path: [{mine.parent}, {tmp_path}/one.jsonl]}}]"
        ended = prep_in_fork(
            "run", "quickstart", "--set", paths, "--out", tmp_path / "home", "--workers", 0
        )
        assert ended.code == 3 and mine.exists()
        assert f"home/{name}/c.jsonl is in the output directory {tmp_path}/home" in ended.err
