"""What tasks share travels once: small calls, the same bytes, fingerprints of constant size."""

import errno
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core import storage
from pipeline.core.directories import explain_errors
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard, fingerprint_of
from pipeline.engine import shared
from pipeline.engine.runner import stage_fields, task_fingerprints
from pipeline.engine.shared import LARGEST_JOB, SUFFIX, Shared, identify, shorten_call
from pipeline.engine.stage import Stage, Task
from pipeline.stories import loop
from tests.pipeline.trees import differences

LARGEST_CALL = 4096


def many(count: int, mark: str = "0") -> tuple[Shard, ...]:
    return tuple(
        Shard(path=f"shuffle/{i:06d}.arrow", size=i, hash=mark * 32, content_hash=mark * 32)
        for i in range(count)
    )


@dataclass(frozen=True)
class Job:
    number: int
    shards: Shared[tuple[Shard, ...]]
    location: str = ""


def stage(shards: tuple[Shard, ...], location: str = "") -> Stage:
    every = Shared(shards)
    jobs = [Job(number, every, location) for number in range(3)]
    tasks = tuple(Task(str(job.number), job, (every,)) for job in jobs)
    return Stage(name="toy", version=1, function=lambda job, inputs: None, tasks=tasks)  # type: ignore[arg-type, return-value]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
@example([1e16, 1e-7, -0.0, math.inf, 1 << 80, "\x00\x1f\x7f\u2028\\/é\U0001f600"])
def test_a_job_is_identified_by_the_canonical_json_of_its_plain_data(value: Any) -> None:
    plain = json.dumps({"job": value}, sort_keys=True, ensure_ascii=False, indent=1)
    assert identify({"job": value}) == xxhash.xxh3_128_hexdigest(plain.encode() + b"\n")


def test_shards_and_what_is_shared_count_by_their_content() -> None:
    shards, numbers = many(2), (1, 2)
    job = {"job": Job(3, Shared(shards), "here"), "wide": np.float64(0.1)}
    paths = [list(shard.identity) for shard in shards]
    plain = {"job": {"number": 3, "shards": fingerprint_of({"shared": paths})}, "wide": 0.1}
    assert identify(job) == fingerprint_of(plain)
    assert identify({"a": shards, "b": numbers}) == fingerprint_of({"a": paths, "b": [1, 2]})


def test_a_call_is_small_and_its_value_is_read_once(tmp_path: Path) -> None:
    many_shards = Shared(many(5000))
    jobs = [shorten_call(Job(number, many_shards), tmp_path) for number in range(3)]
    calls = [pickle.dumps(job) for job in jobs]
    assert max(map(len, calls)) < 400
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1
    loaded = [pickle.loads(call) for call in calls]
    assert [job.number for job in loaded] == [0, 1, 2]
    assert loaded[0].shards.value == many(5000)
    assert loaded[0].shards is loaded[2].shards
    assert max(len(pickle.dumps(job)) for job in loaded) < 400, "sent on, it is a reference again"


def test_a_large_job_goes_by_a_file(tmp_path: Path) -> None:
    small, large = ("x",), tuple("x" * LARGEST_JOB)
    assert shorten_call(small, tmp_path) is small
    sent = pickle.dumps(shorten_call(large, tmp_path))
    assert len(sent) < 400
    assert pickle.loads(sent).value == large


def test_what_travels_is_checked(tmp_path: Path) -> None:
    sent = pickle.dumps(shorten_call(tuple("y" * LARGEST_JOB), tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError, match="damaged"):
        pickle.loads(sent)


def test_a_disk_that_fills_up_is_one_message(
    corpus: Any, tmp_path: Path, prep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is shared is written before a call is sent, where an error still has a name."""

    def publish(path: Path, data: bytes, durable: bool) -> None:
        with explain_errors(path, len(data)):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared, "storage", SimpleNamespace(**vars(storage) | {"publish": publish}))
    monkeypatch.setattr(loop, "executor", lambda *settings: nullcontext(Postman()))
    ended = prep("run", corpus.config, "--out", tmp_path / "run")
    assert ended.code == 5
    (message,) = [line for line in ended.err.splitlines() if not line.startswith("note: ")]
    assert f"{SUFFIX}: no room to write" in message


def test_what_is_shared_counts_for_every_task() -> None:
    before, after = stage(many(9)), stage((*many(8), *many(1, "1")))
    assert not set(task_fingerprints(before)) & set(task_fingerprints(after))
    assert stage_fields(before)["inputs"] != stage_fields(after)["inputs"]
    elsewhere = stage(many(9), "/another/place")
    assert task_fingerprints(elsewhere) == task_fingerprints(before)


def test_a_task_does_not_depend_on_others() -> None:
    whole = stage(many(9))
    part = replace(whole, tasks=whole.tasks[1:])
    assert task_fingerprints(part) == task_fingerprints(whole)[1:]
    assert stage_fields(part)["inputs"] != stage_fields(whole)["inputs"]


class Postman:
    """An executor that sends every call as a worker would get it."""

    workers = 1
    is_here = False

    def __init__(self) -> None:
        self.largest: dict[str, int] = {}

    def run(self, call: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for index, job in enumerate(jobs):
            sent = pickle.dumps((call, job))
            name = job.record_path.parent.name if hasattr(job, "record_path") else "texts"
            self.largest[name] = max(self.largest.get(name, 0), len(sent))
            function, received = pickle.loads(sent)
            yield index, function(received)


def test_no_call_of_a_run_is_large(
    small_run: Any, corpus: Any, tmp_path: Path, prep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage of a run, sent and received: no call is larger than 4 KB, and the bytes are those
    of a run that sends nothing."""
    postman = Postman()
    monkeypatch.setattr(loop, "executor", lambda *settings: nullcontext(postman))
    out = tmp_path / "run"
    ended = prep("run", corpus.config, "--out", out)
    assert ended.code == 0, ended.err
    assert differences(out, small_run.directory) == []
    assert len(postman.largest) > 15
    assert max(postman.largest.values()) <= LARGEST_CALL, postman.largest
    assert not list(out.rglob(f"*{SUFFIX}"))
