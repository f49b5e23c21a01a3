"""`prep run` with `pack.append`, killed at any write of a new generation: the data set that is
there stays intact and verifies, and the same command makes the same bytes in the end."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from pipeline.core.hashes import hash_file
from tests.forked import Ended, forked, load_everything, prep_in_fork
from tests.reliability.conftest import WORDS
from tests.slow import mark_slow

pytestmark = pytest.mark.crash
CONFIG = """\
name: grown
inputs: [{name: raw, path: in}]
pack: {append: true, max_sequence_length: 32, validation_share: 0.2}
"""
VOLATILE = {".lock", "journal", "events.jsonl", "events.head", "generations"}


def write(path: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)
    lines = (json.dumps({"text": " ".join(rng.choices(WORDS, k=90))}) for _ in range(count))
    path.write_text("\n".join(lines) + "\n")


def run(place: Path, *options: str, fault: str = "") -> Ended:
    return prep_in_fork("run", "c.yaml", "--out", "run", "--workers", 0, *options, cwd=place,
                        fault=fault)  # fmt: skip


def verify(place: Path) -> list[str]:
    ended = prep_in_fork("verify", "run", "--json", cwd=place)
    assert ended.code == 0, ended.err
    return [check["name"] for check in json.loads(ended.out)]


def hashes(directory: Path) -> dict[str, str]:
    files = (p for p in directory.rglob("*") if p.is_file())
    kept = (p for p in files if p.relative_to(directory).parts[0] not in VOLATILE)
    return {p.relative_to(directory).as_posix(): hash_file(p) for p in kept}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and a file that it has not read; read only."""
    place = tmp_path_factory.mktemp("start")
    (place / "in").mkdir()
    (place / "c.yaml").write_text(CONFIG)
    write(place / "in" / "a.jsonl", 1, 30)
    assert run(place).code == 0
    write(place / "in" / "b.jsonl", 2, 12)
    return place


@pytest.fixture(scope="module")
def whole(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The same, appended to without any fault; and how many points a fault could be at."""
    place = tmp_path_factory.mktemp("whole")
    shutil.copytree(start, place, dirs_exist_ok=True)
    load_everything()
    log = place / "points"

    def call() -> None:
        import pipeline

        pipeline.run(place / "c.yaml", place / "run", 0)

    assert forked(call, log=str(log)) == 0
    return place, len(log.read_text().splitlines())


@pytest.mark.parametrize("number", mark_slow(range(40), *range(1, 40)))
def test_killed_while_a_generation_is_made(
    start: Path, whole: tuple[Path, int], tmp_path: Path, rng: random.Random, number: int
) -> None:
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    before, made = hashes(start / "run"), Path("run", "generations", "000001")
    for _ in range(2):
        ended = run(tmp_path, fault=f"*@{rng.randint(1, whole[1])}=kill")
        assert ended.code in (-signal.SIGKILL, 0), ended.err
        assert hashes(tmp_path / "run") == before
        is_made = (tmp_path / made / "manifest.json").exists()
        assert ("generation 1, hdf5/train" in verify(tmp_path)) == is_made
    assert run(tmp_path).code == 0
    assert hashes(tmp_path / "run") == before
    assert hashes(tmp_path / made) == hashes(whole[0] / made)
    assert verify(tmp_path)[-1] == "generations"


def test_killed_while_all_is_made_again(
    whole: tuple[Path, int], tmp_path: Path, rng: random.Random
) -> None:
    """Whatever `--replace` left, no command takes half of it for a data set, and the same one
    brings it to its end."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    ended = run(tmp_path, "--replace", fault=f"*@{rng.randint(1, whole[1] // 2)}=kill")
    assert ended.code == -signal.SIGKILL
    verified = prep_in_fork("verify", "run", cwd=tmp_path)
    assert verified.code == 0 or "not a finished run" in verified.err
    plain = run(tmp_path)
    assert plain.code == 0 or "--replace" in plain.err
    assert run(tmp_path, "--replace").code == 0
    assert not (tmp_path / "run" / "generations").exists()
    assert len(verify(tmp_path)) > 8


CLAIM = """\
id: c1
claimant: Example Press
received: 2026-03-01
basis: a registered work
what: {documents: ["a.jsonl:1", "b.jsonl:1"]}
"""


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_a_takedown_of_two_generations_is_killed(
    whole: tuple[Path, int], tmp_path: Path, rng: random.Random, number: int
) -> None:
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "claim.yaml").write_text(CLAIM)
    command = ("takedown", "claim.yaml", "--run", "run", "--apply", "--by", "me", "--json")
    for _ in range(2):
        fault = f"*@{rng.randint(1, 150)}=kill"
        assert prep_in_fork(*command, cwd=tmp_path, fault=fault).code in (-signal.SIGKILL, 0)
    ended = prep_in_fork(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    records = [(r["generation"], r["documents"]["count"]) for r in json.loads(ended.out)]
    assert records == [(0, 1), (1, 1)]
    assert "generation 1, takedowns" in verify(tmp_path)
    assert "up to date" in run(tmp_path).out
