"""Runs of many small files, each with a source of its own: what they cost, and what is shown."""

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import pipeline
from pipeline.commands.app import main


def write_run(directory: Path, sources: int, one_input: bool) -> Path:
    """A config and its files, two documents each."""
    directory.mkdir()
    for number in range(sources):
        texts = [f"Document {number} {part} has words of its own, {number * 7 + part}. " * 9
                 for part in range(2)]  # fmt: skip
        lines = [json.dumps({"text": text, "meta": {"pile_set_name": f"set {number}"}})
                 for text in texts]  # fmt: skip
        (directory / f"{number:03}.jsonl").write_text("\n".join(lines) + "\n")
    inputs: list[dict[str, Any]] = [{"name": "all", "path": "*.jsonl"}]
    if not one_input:
        inputs = [{"name": f"in{n}", "path": f"{n:03}.jsonl"} for n in range(sources)]
    (directory / "c.yaml").write_text(json.dumps({"name": "c", "inputs": inputs}))
    return directory / "c.yaml"


def count_calls(config: Path) -> int:
    """Functions called by a run."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        pipeline.run(config, config.parent / "run", 0)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("one_input", [False, True])
def test_another_source_costs_what_the_first_did(tmp_path: Path, one_input: bool) -> None:
    """Twice as many more cost twice as much, not four times. (The first run imports modules.)"""
    count_calls(write_run(tmp_path / "first", 2, one_input))
    few, some, many = (
        count_calls(write_run(tmp_path / str(sources), sources, one_input))
        for sources in (25, 75, 175)
    )
    assert many - some <= 1.25 * 2 * (some - few)


def test_batches_of_small_files_are_joined(tmp_path: Path) -> None:
    config = write_run(tmp_path / "in", 80, True)
    pipeline.run(config, tmp_path / "run", 0)
    (shard,) = (tmp_path / "run/documents").glob("*.arrow")
    with pa.memory_map(str(shard)) as file, pa.ipc.open_file(file) as reader:
        assert reader.num_record_batches == 1
        assert len(reader.read_all()) == 160


def test_of_many_sources_the_largest_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_run(tmp_path / "in", 80, True)
    with (tmp_path / "in/077.jsonl").open("a") as file:
        file.write(
            json.dumps({"text": "One more document " * 9, "meta": {"pile_set_name": "set 77"}})
        )
    arguments = ["prep", "run", str(config), "--out", str(tmp_path / "run"), "--workers", "0"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert "the 50 largest; all 80 are in ledger.json" in shown
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    counts = {row[1].strip(): int(row[2]) for row in rows[:52]}
    assert counts["set 77"] == 3
    assert counts["30 others"] == 60
    assert counts["all"] == 161
    assert len(counts) == 52
