"""A run directory in a bucket: the bytes of a local one, whatever fails on the way."""

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.hashes import hash_bytes, tree_hash
from tests.reliability.conftest import HELD_SECONDS, WORDS, Clean, Collection, Popen, finish

FAULTS = 0.08
KILLS = 200
POINTS = 2000
"""More than a run has, so that some are not killed at all."""


READS_S3 = """
import os
from obstore.fsspec import register
os.environ["AWS_ALLOW_HTTP"] = "true"
register("s3")
"""
"""For inputs: another client of such stores that fsspec knows, as s3fs would be."""


QUESTIONS: tuple[Callable[[object], tuple[object, ...]], ...] = (
    lambda run: ("explain", run, "02.jsonl:3"),
    lambda run: ("trace", run, "--file", "hdf5/train/examples_000000.h5", "--row", 0),
)
ONE_BY_ONE = """
import json, sys
from pipeline.commands.app import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["prep", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print("\\f", end="")
"""


def finish_all(far: Callable[..., Popen], host: str, *commands: tuple[object, ...]) -> list[str]:
    """What each of these commands prints, in one process of a host."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    *printed, rest = finish(far(host, words, program=ONE_BY_ONE)).split("\f")
    assert len(printed) == len(commands) and not rest
    return printed


def test_a_run_in_a_bucket_has_the_bytes_of_a_local_one_for_every_host(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean, tmp_path: Path
) -> None:
    out = "s3://runs/equal"
    command = ("run", collection.config, "--out", out)
    assert f"outputs: {out}/" in finish(far("one", *command, "--workers", 2))
    assert s3.tree_hash("equal/") == clean.tree_hash
    _, status = finish_all(far, "two", ("verify", out, "--lineage", 5), ("status", out))
    assert "finished" in status
    runs = (out, clean.directory)
    asked = [question(run) for run in runs for question in QUESTIONS]
    answers = finish_all(far, "three", *asked)
    there, here = answers[: len(QUESTIONS)], answers[len(QUESTIONS) :]
    assert there == [answer.replace(str(clean.directory), out) for answer in here]
    assert all(here)
    assert "everything was up to date" in finish(far("four", *command))
    documents = list((tmp_path / "four/buckets/s3/runs/equal/documents").glob("*.arrow"))
    assert documents
    assert all(path.stat().st_blocks == 0 for path in documents), "nothing was fetched for that"


@pytest.mark.slow
def test_an_index_of_words_in_a_bucket_finds_what_a_search_without_finds(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean, tmp_path: Path
) -> None:
    """It is made on one host, used on another, and a local one answers the same."""
    out, local = "s3://runs/words", clean.copy(tmp_path / "local")
    finish(far("one", "run", collection.config, "--out", out, "--workers", 0))
    table = pa.ipc.open_file(next((local / "documents").glob("*.arrow"))).read_all()
    words = " ".join(table["text"][3].as_py().split()[2:7])

    def search(run: object, host: str) -> str:
        return finish(far(host, "search", run, words, "--json")).replace(str(local), out)

    before = search(out, "two")
    assert json.loads(before)["documents_total"] > 0
    finish(far("one", "search", out, "--index"))
    assert s3.read("words/word_index/")
    assert search(out, "three") == search(local, "four") == before
    finish(far("three", "verify", out))


SMALL_BLOCKS = """
from pipeline.core.mirror import fetching
from pipeline.engine import blocks
blocks.BLOCK, blocks.LEAST = 128, 512
read_part = fetching.read_span
def note(path, start, stop):
    with open(path.parents[5] / "brought", "a") as log:
        print(path.parent.name, stop - start, file=log)
    return read_part(path, start, stop)
fetching.read_span = note
"""


@pytest.mark.slow
def test_a_host_that_makes_one_bucket_of_the_shuffle_brings_a_fraction(
    far: Callable[..., Popen], s3: Any, collection: Collection, tmp_path: Path
) -> None:
    """It is killed while it does, and goes on."""
    out = "s3://runs/fraction"
    settings = ("pack.bucket_tokens=1024", "read.task_bytes=40 KiB")
    sets = [word for setting in settings for word in ("--set", setting)]
    command = ("run", collection.config, "--out", out, "--workers", 0, *sets)
    finish(far("one", *command, before=SMALL_BLOCKS))
    before = s3.tree_hash("fraction/")
    tokens = {name: len(data) for name, data in s3.read("fraction/tokens/").items()}
    s3.client().delete_object(Bucket="runs", Key="fraction/rows/train-000003.windows.arrow")
    fault = "blocks.bring.written@3=kill"
    killed = far("two", *command, before=SMALL_BLOCKS, fault=fault)
    killed.communicate(240)
    assert killed.returncode == -signal.SIGKILL
    finish(far("two", *command, before=SMALL_BLOCKS))
    assert s3.tree_hash("fraction/") == before
    brought = [line.split() for line in (tmp_path / "two/brought").read_text().splitlines()]
    assert {directory for directory, _ in brought} == {"stream", "tokens"}
    of_tokens = sum(int(size) for directory, size in brought if directory == "tokens")
    assert 0 < of_tokens < sum(tokens.values()) * 0.5
    mirrored = tmp_path / "two/buckets/s3/runs/fraction/tokens"
    assert all((mirrored / name).stat().st_blocks == 0 for name in tokens)


def check_committed(s3: Any, prefix: str) -> None:
    """What a manifest names is there, as it is named; but for documents whose texts go to
    quarantine, of which that of the stage does not know until all have gone."""
    objects = s3.read(prefix)
    named = list(json.loads(objects.get("manifest.json", b'{"files": []}'))["files"])
    for name, data in objects.items():
        if name.startswith("manifests/"):
            shards = [shard for task in json.loads(data)["tasks"] for shard in task["shards"]]
            named += [shard for shard in shards if not shard["path"].startswith("documents/")]
    for file in named:
        assert hash_bytes(objects[file["path"]]) == file["hash"], file["path"]


@dataclass
class Killing:
    """A run in a bucket that is disturbed in the way that its number says, and resumed under faults
    of the store until it is finished."""

    far: Callable[..., Popen]
    s3: Any
    collection: Collection
    number: int

    def __post_init__(self) -> None:
        self.rng = random.Random(self.number)
        self.prefix = f"killed-{self.number}/"
        self.out = f"s3://runs/{self.prefix[:-1]}"
        self.command = ("run", self.collection.config, "--out", self.out, "--workers", 0)
        self.hit = f"*@{self.rng.randrange(1, POINTS)}"
        self.starts = 0

    def start(self, host: str, fault: str = "", outage: int | None = None) -> Popen:
        self.starts += 1
        self.s3.set_faults(FAULTS, seed=100 * self.number + self.starts, outage=outage)
        return self.far(host, *self.command, fault=fault)

    def finish(self, program: Popen, *allowed: int) -> int:
        """Its exit code, one of these; 5 with the name of the run."""
        _, err = program.communicate(240)
        assert "hunter2" not in err
        code = int(program.returncode)
        assert code in allowed, err
        assert code != 5 or self.out in err, err
        check_committed(self.s3, self.prefix)
        return code

    def resume(self, host: str) -> None:
        """As often as the store, or the lease of a writer that was killed, asks for."""
        for _ in range(8):
            if self.finish(self.start(host), 0, 5) == 0:
                return
        raise AssertionError("eight attempts were not enough")

    def kill(self) -> None:
        """A writer dies, and its own host or another one resumes."""
        self.finish(self.start("one", f"{self.hit}=kill"), -signal.SIGKILL, 0, 5)
        self.resume(self.rng.choice(("one", "two")))

    def sleep(self) -> None:
        """A writer is stopped for longer than its lease lasts, while another host finishes."""
        first = self.start("one", f"{self.hit}=stop")
        if not wait_for_stop(first):
            self.finish(first, 0, 5)
            return self.resume("two")
        time.sleep(HELD_SECONDS)
        self.resume("two")
        before = self.s3.read(self.prefix)
        first.send_signal(signal.SIGCONT)
        self.finish(first, 0, 5)
        after = self.s3.read(self.prefix)
        different = [n for n in before | after if before.get(n) != after.get(n)]
        assert all(name.startswith("journal/records/") for name in different), different

    def meet(self) -> None:
        """A second writer comes while the first is at work, which is then killed."""
        first = self.start("one", f"{self.hit}=kill")
        while ".lock" not in self.s3.names(self.prefix) and first.poll() is None:
            time.sleep(0.05)
        host = self.rng.choice(("one", "two"))
        second = self.far(host, *self.command)
        self.finish(second, 0, 5)
        self.finish(first, -signal.SIGKILL, 0, 5)
        self.resume(host)

    def fail(self) -> None:
        """The store answers no more, at some request."""
        self.finish(self.start("one", outage=self.rng.randrange(600)), 0, 5)
        self.resume("two")


WAYS = (*[Killing.kill] * 7, Killing.sleep, Killing.meet, Killing.fail)


def wait_for_stop(program: Popen) -> bool:
    """Whether a program stopped itself, or ended."""
    while program.poll() is None:
        state = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return True
        time.sleep(0.05)
    return False


def kill_and_resume(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean, number: int
) -> None:
    case = Killing(far, s3, collection, number)
    way = WAYS[number % len(WAYS)]
    print(f"replay: kill_and_resume(..., {number}): {way.__name__} {case.hit}")
    way(case)
    s3.set_faults(0)
    assert s3.tree_hash(case.prefix) == clean.tree_hash
    s3.forget(case.prefix)


@pytest.mark.crash
def test_a_killed_run_on_a_store_with_faults_resumes_to_equal_bytes(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean
) -> None:
    """Another kill every day; the other ways take longer."""
    kill_and_resume(far, s3, collection, clean, date.today().toordinal() * len(WAYS))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("number", range(KILLS))
def test_two_hundred_kills(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean, number: int
) -> None:
    kill_and_resume(far, s3, collection, clean, number)


def test_a_second_writer_is_refused_by_name(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean
) -> None:
    command = ("run", collection.config, "--out", "s3://runs/two", "--workers", 0)
    first = far("one", *command, fault="task.start.keep@1=sleep:3")
    while "documents/000000.arrow" not in s3.names("two/"):
        time.sleep(0.05)
    for host in ("one", "two"):
        second = far(host, *command)
        _, err = second.communicate()
        assert second.returncode == 5
        assert f"in use by pid {first.pid} on" in err
    assert "pid" in finish(far("two", "status", "s3://runs/two"))
    finish(first)
    assert s3.tree_hash("two/") == clean.tree_hash


@pytest.mark.slow
def test_a_writer_that_slept_through_its_lease_stops_and_harms_nothing(
    far: Callable[..., Popen], s3: Any, collection: Collection, clean: Clean
) -> None:
    """It stops before its last commit, another host finishes the run, and then it goes on."""
    command = ("run", collection.config, "--out", "s3://runs/slept", "--workers", 0)
    first = far("one", *command, fault="task.start.report@1=sleep:4")
    while b'"name": "report"' not in s3.read("slept/journal/events").get(".jsonl", b""):
        assert first.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    first.send_signal(signal.SIGSTOP)
    time.sleep(HELD_SECONDS + 1.5)
    finish(far("two", *command))
    before = s3.read("slept/")
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate()
    assert first.returncode == 5, err
    assert "s3://runs/slept: " in err
    assert s3.read("slept/") == before
    assert s3.tree_hash("slept/") == clean.tree_hash


@pytest.fixture
def stored(s3: Any, collection: Collection, tmp_path: Path) -> Callable[[str], Path]:
    """A config whose inputs are the objects raw/ of the bucket, by one way to reach them."""
    for path in collection.plain_shard.parent.iterdir():
        s3.client().put_object(
            Bucket="runs", Key=f"raw/{path.name}", Body=path.read_bytes(), ACL="public-read"
        )
    time.sleep(1.1)  # what was just written may be late

    def make(scheme: str) -> Path:
        names = sorted(path.name for path in collection.plain_shard.parent.iterdir())
        urls = {"s3": "s3://runs/raw/", "http": [f"{s3.url}/runs/raw/{name}" for name in names]}
        config = tmp_path / f"{scheme}.yaml"
        text = collection.config.read_text()
        config.write_text(text.replace("path: raw", f"path: {json.dumps(urls[scheme])}"))
        return config

    return make


def run_on_stored(
    far: Callable[..., Popen], config: Path, out: Path, fault: str = ""
) -> tuple[int, str]:
    command = ("run", config, "--out", out, "--workers", 0)
    program = far("one", *command, fault=fault, before=READS_S3)
    _, err = program.communicate(240)
    return program.returncode, err


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_inputs_in_a_bucket_give_the_bytes_of_local_ones_whatever_fails(
    far: Callable[..., Popen], stored: Callable[[str], Path], s3: Any, clean: Clean,
    tmp_path: Path, scheme: str,
) -> None:  # fmt: skip
    """Among them one that is read by ranges; killed and resumed, while requests fail."""
    config = stored(scheme)
    for number, point in enumerate((0, 3, 9, 40)):
        out = tmp_path / f"out-{number}"
        fault = f"storage.publish.renamed@{point}=kill" if point else ""
        for attempt in range(4):
            s3.set_faults(FAULTS, seed=10 * number + attempt)
            code, err = run_on_stored(far, config, out, "" if attempt else fault)
            s3.set_faults(0)
            assert code in (0, 5, -signal.SIGKILL), err
            if code == 0:
                break
        assert code == 0, err
        assert tree_hash(out) == clean.tree_hash


@pytest.mark.slow
def test_a_generation_in_a_bucket_is_read_by_every_host(
    far: Callable[..., Popen], s3: Any, tmp_path: Path
) -> None:
    """`pack.append` by two hosts, one after the other; a third one verifies and explains."""
    rng, raw, out = random.Random(5), tmp_path / "raw", "s3://runs/grown"
    raw.mkdir()
    config = tmp_path / "grown.yaml"
    config.write_text(
        f"name: grown\ninputs: [{{name: raw, path: {raw}}}]\n"
        "pack: {append: true, max_sequence_length: 32, validation_share: 0.2}\n"
    )
    for name, host in (("b", "one"), ("a", "two")):
        lines = (json.dumps({"text": " ".join(rng.choices(WORDS, k=90))}) for _ in range(20))
        (raw / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        finish(far(host, "run", config, "--out", out, "--workers", 0))
    names = finish(far("three", "verify", out))
    assert "ok  generation 1, hdf5/train" in names and "2 generations of 2 raw shards" in names
    assert "raw/a.jsonl:7" in finish(far("four", "explain", out, "a.jsonl:7"))
    assert "up to date" in finish(far("four", "run", config, "--out", out, "--workers", 0))
