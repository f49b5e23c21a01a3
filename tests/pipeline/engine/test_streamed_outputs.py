"""Outputs of a task that come one by one, published by the runner as they come."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError, NondeterminismError
from pipeline.core.hashes import hash_file, verify_file
from pipeline.core.manifest import read_record
from pipeline.core.mirror.paths import TEMP_MARK
from pipeline.engine.runner import _perform, _TaskCall
from pipeline.engine.stage import Inputs, Output, Result, bytes_output


def call_of(root: Path, function: Callable[..., Result]) -> _TaskCall:
    return _TaskCall(
        root=root,
        function=function,
        label="toy",
        memory=0,
        job=None,
        fingerprint="f" * 32,
        record_path=root / "journal/records/toy/0.json",
    )


def streaming(job: Any, inputs: Inputs) -> Result:
    counters: dict[str, Any] = {}

    def outputs() -> Iterator[Output]:
        for index in range(3):
            assert index == 0 or (inputs.root / f"toy/{index - 1}").exists()
            yield Output(f"toy/{index}", iter([b"piece ", b"%d" % index]))
        counters["seen"] = 3

    return Result(outputs(), counters)


def test_outputs_are_published_as_they_come(tmp_path: Path) -> None:
    done = _perform(call_of(tmp_path, streaming)).record
    assert done is not None
    assert done.counters == {"seen": 3}
    for index, shard in enumerate(done.shards):
        assert (tmp_path / shard.path).read_bytes() == b"piece %d" % index
        assert shard.hash == shard.content_hash == hash_file(tmp_path / shard.path)
    assert _perform(call_of(tmp_path, streaming)).record == done


def test_a_second_attempt_never_replaces_other_content(tmp_path: Path) -> None:
    def other(job: Any, inputs: Inputs) -> Result:
        return Result(iter([Output("toy/0", b"piece 0"), Output("toy/1", b"something else")]))

    def fewer(job: Any, inputs: Inputs) -> Result:
        return Result((bytes_output("toy/0", b"piece 0"),))

    committed = _perform(call_of(tmp_path, streaming)).record
    assert committed is not None
    for attempt in (other, fewer):
        with pytest.raises(NondeterminismError, match="toy: two attempts gave different content"):
            _perform(call_of(tmp_path, attempt))
        for shard in committed.shards:
            verify_file(tmp_path / shard.path, shard.hash)
    assert not list(tmp_path.rglob(f"{TEMP_MARK}*"))


def test_a_second_attempt_may_be_compressed_otherwise(tmp_path: Path) -> None:
    """Equal values in other bytes: the file and its record are those of the later attempt."""

    def packed(level: bytes) -> Callable[..., Result]:
        return lambda job, inputs: Result((Output("toy/0", b"at level " + level, "c" * 32),))

    first = _perform(call_of(tmp_path, packed(b"1"))).record
    second = _perform(call_of(tmp_path, packed(b"2"))).record
    assert first is not None
    assert second is not None
    assert first.shards[0].hash != second.shards[0].hash
    verify_file(tmp_path / "toy/0", second.shards[0].hash)
    assert read_record(tmp_path / "journal/records/toy/0.json") == second


def test_an_error_after_the_first_output_commits_nothing(tmp_path: Path) -> None:
    def damaged(job: Any, inputs: Inputs) -> Result:
        def pieces() -> Iterator[bytes]:
            yield b"half"
            raise InputError("cut off")

        return Result(iter([Output("toy/0", b"whole"), Output("toy/1", pieces())]))

    call = call_of(tmp_path, damaged)
    assert _perform(call).problem == "cut off"
    assert not call.record_path.exists()
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["0"]
