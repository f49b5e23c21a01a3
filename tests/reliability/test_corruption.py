"""One changed bit in any file is named by `prep verify` and mended by `prep run`."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.hashes import files_below, hash_bytes
from pipeline.core.manifest import read_manifest
from pipeline.engine.runner import Runner, manifest_path
from pipeline.runs import layout
from tests.forked import prep_in_fork
from tests.slow import mark_slow
from tests.stages import stages_by_default

STAGES = stages_by_default()

Prep = Callable[..., Any]


def flip(path: Path, rng: random.Random) -> str:
    """Flip one bit; returns what was done."""
    data = bytearray(path.read_bytes())
    offset, bit = rng.randrange(len(data)), rng.randrange(8)
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {offset}"


def zero_page(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    start = rng.randrange(0, len(data), 4096)
    page = bytes(len(data[start : start + 4096]))
    assert data[start : start + 4096] != page
    path.write_bytes(data[:start] + page + data[start + 4096 :])
    return f"page at {start} zeroed"


def cut(path: Path, rng: random.Random) -> str:
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def append(path: Path, rng: random.Random) -> str:
    with open(path, "ab") as file:
        file.write(b"\n")
    return "one byte appended"


def delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "deleted"


def stale(path: Path, rng: random.Random) -> str:
    path.write_bytes(b"an older version\n")
    return "replaced"


DAMAGES = (flip, zero_page, cut, append, delete, stale)


@pytest.fixture
def damaged_run(clean: Any, tmp_path: Path) -> Path:
    copy: Path = clean.copy(tmp_path / "run")
    return copy


def test_a_flipped_bit_in_any_file_is_found_and_named(
    damaged_run: Path, prep: Prep, rng: random.Random
) -> None:
    """The commit is damaged alone, other files five at a time: each of them has to be named."""
    files = list(files_below(damaged_run))
    assert len(files) > 60
    assert prep("verify", damaged_run).code == 0
    rest = [file for file in files if file.as_posix() != layout.MANIFEST]
    for group in ([Path(layout.MANIFEST)], *(rest[k : k + 5] for k in range(0, len(rest), 5))):
        before = {(damaged_run / name): (damaged_run / name).read_bytes() for name in group}
        done = {path: flip(path, rng) for path in before}
        found = prep("verify", damaged_run)
        for path, data in before.items():
            path.write_bytes(data)
        assert (found.code, found.out) == (4, ""), f"{done}: {found}"
        assert [path for path in before if str(path) not in found.err] == [], f"{done}: {found.err}"


@pytest.mark.parametrize("damage", DAMAGES[1:], ids=lambda d: d.__name__)
def test_other_damage_is_found_and_named(
    damaged_run: Path, prep: Prep, rng: random.Random, damage: Callable[..., str]
) -> None:
    files = [f for f in files_below(damaged_run) if f.as_posix() != layout.MANIFEST]
    for relative in rng.sample(files, 6):
        path = damaged_run / relative
        before = path.read_bytes()
        done = damage(path, rng)
        found = prep("verify", damaged_run)
        path.write_bytes(before)
        assert found.code == 4, f"{relative}: {done}: {found}"
        assert str(path) in found.err, f"{relative}: {done}: {found.err}"


def test_swapped_shards_and_strays_are_found(damaged_run: Path, prep: Prep) -> None:
    first, second = (damaged_run / layout.shard("tokens", i, "arrow") for i in range(2))
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    (damaged_run / "tokens/stray.arrow").write_bytes(b"?")
    found = prep("verify", damaged_run)
    assert found.code == 4
    for path in (first, second, damaged_run / "tokens/stray.arrow"):
        assert str(path) in found.err
    assert f"expected hash {hash_bytes(data[0])}" in found.err
    assert f"found {hash_bytes(data[1])}" in found.err
    assert "run again the command that made it" in found.err


def test_every_flipped_bit_of_the_commit_is_found(damaged_run: Path, prep: Prep) -> None:
    """manifest.json has no hash above it: its seal has to notice every single bit."""
    path = damaged_run / layout.MANIFEST
    before = path.read_bytes()
    for offset in range(0, len(before), max(1, len(before) // 40)):
        for bit in (0, 5):
            data = bytearray(before)
            data[offset] ^= 1 << bit
            path.write_bytes(data)
            assert prep("verify", damaged_run).code == 4, f"bit {bit} of byte {offset}"
    assert prep("verify", damaged_run / "nothing").code == 4


def owner(run: Path, relative: Path) -> tuple[str, int]:
    """The stage that published a file, and how many of its tasks have to run to rebuild it."""
    for stage in STAGES:
        manifest = read_manifest(manifest_path(run, stage))
        assert manifest is not None
        if relative.as_posix() in (shard.path for shard in manifest.shards):
            return stage, 1
        if relative == Path("manifests") / f"{stage}.json":
            return stage, len(manifest.tasks)
    return "", 0


def one_of_each_kind(run: Path, rng: random.Random) -> list[Path]:
    """One file per directory and suffix."""
    kinds: dict[tuple[str, str], list[Path]] = {}
    for relative in files_below(run):
        parent = relative.parent.as_posix() if len(relative.parts) > 1 else relative.name
        kinds.setdefault((parent, relative.suffix), []).append(relative)
    return [rng.choice(files) for files in kinds.values()]


@pytest.mark.parametrize("share", mark_slow([0.5, 1], 1))
def test_prep_run_rebuilds_exactly_what_was_damaged(
    collection: Any, clean: Any, tmp_path: Path, prep: Prep, rng: random.Random, undamaged: Any,
    share: float,
) -> None:  # fmt: skip
    """A file of every second kind, others every day; the slow test has all."""
    run = clean.copy(tmp_path / "run")
    files = one_of_each_kind(run, rng)
    assert len(files) > 20
    for relative in rng.sample(files, round(len(files) * share)):
        stage, tasks = owner(run, relative)
        done = rng.choice((flip, cut, delete))(run / relative, rng)
        mended = prep("run", collection.config, "--out", run, "--workers", 0)
        assert mended.code == 0, f"{relative} {done}: {mended.err}"
        wanted = {stage: tasks} if stage else {}
        if relative.parts[0] == "quarantine":
            wanted["clean"] = 1  # its texts stand nowhere else: the raw shard is read again
        assert mended.tasks == wanted, f"{relative} {done}: {mended.tasks}"
        undamaged(run)


@pytest.mark.crash
def test_a_damaged_record_costs_its_own_task_only(
    collection: Any, tmp_path: Path, prep: Prep, rng: random.Random, undamaged: Any
) -> None:
    out = tmp_path / "run"
    command = ("run", collection.config, "--out", out, "--workers", 0)
    assert prep_in_fork(*command, fault="task.start.tokenize@3=kill").code == -9
    records = sorted((out / "journal/records/tokenize").glob("*.json"))
    assert len(records) == 2
    flip(records[0], rng)
    resumed = prep(*command)
    assert resumed.code == 0
    assert resumed.tasks["tokenize"] == 2
    assert resumed.tasks["clean"] == 0
    undamaged(out)


def test_a_damaged_input_of_a_task_is_named_before_it_is_used(
    collection: Any, clean: Any, tmp_path: Path, prep: Prep, rng: random.Random,
    monkeypatch: pytest.MonkeyPatch, undamaged: Any,
) -> None:  # fmt: skip
    """The shard changes after its own stage was found intact: its reader has to notice."""
    run = clean.copy(tmp_path / "run")
    shard = run / layout.shard("tokens", 1, "arrow")
    (run / "manifests/rows.json").unlink()
    flip(shard, rng)
    command = ("run", collection.config, "--out", run, "--workers", 0)
    with monkeypatch.context() as blind:
        blind.setattr(Runner, "_check", lambda self, stage, records: [True] * len(records))
        refused = prep(*command)
    assert refused.code == 4
    assert f"{shard}: damaged: expected hash " in refused.err
    mended = prep(*command)
    assert mended.code == 0
    assert mended.tasks["tokenize"] == 1
    undamaged(run)
