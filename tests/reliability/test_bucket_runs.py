"""A run directory in a bucket: the bytes of a local one, whatever fails on the way."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dedup.user_cache import user_cache
from pipeline.core import storage
from tests.reliability.conftest import Clean, Collection

HELD_SECONDS = 2.0
FAULTS = 0.08
KILLS = 200
POINTS = 2000
"""More than a run has, so that some are not killed at all."""


PREP = f"""
from pipeline.core import lease
lease.SECONDS = {HELD_SECONDS}
from pipeline.commands.app import main
main()
"""
"""Fresh processes: the client of a store is of no use in a fork of a process that used one."""
Program = subprocess.Popen[str]
READS_S3 = """
import os
from obstore.fsspec import register
os.environ["AWS_ALLOW_HTTP"] = "true"
register("s3")
"""
"""For inputs: another client of such stores that fsspec knows, as s3fs would be."""


@pytest.fixture
def far(s3: Any, tmp_path: Path) -> Callable[..., Program]:
    """Run a `prep` command on a host of this name, which is to say with a cache of its own."""
    compiled = user_cache()
    assert compiled is not None

    def call(host: str, *arguments: object, fault: str = "", before: str = "") -> Program:
        cache = tmp_path / host
        cache.mkdir(exist_ok=True)
        for name in ("kernels", "cleaning", "tokenizer-checks"):
            if not (cache / name).exists():
                (cache / name).symlink_to(compiled / name)
        own = {"WAFERMILL_CACHE": str(cache), "WAFERMILL_FAILPOINT": fault}
        return subprocess.Popen(
            [sys.executable, "-c", before + PREP, *map(str, arguments)],
            env={**os.environ, **s3.environment, **own},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return call


def finish(program: Program) -> str:
    out, err = program.communicate(240)
    assert program.returncode == 0, err
    return out


def test_a_run_in_a_bucket_has_the_bytes_of_a_local_one_for_every_host(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean, tmp_path: Path
) -> None:
    out = "s3://runs/equal"
    command = ("run", collection.config, "--out", out)
    assert f"outputs: {out}/" in finish(far("one", *command, "--workers", 2))
    assert s3.tree_hash("equal/") == clean.tree_hash
    finish(far("two", "verify", out, "--lineage", 5))
    assert "finished" in finish(far("two", "status", out))
    for question in (
        ("explain", "RUN", "02.jsonl:3"),
        ("trace", "RUN", "--file", "hdf5/train/examples_000000.h5", "--row", 0),
    ):
        here = [clean.directory if word == "RUN" else word for word in question]
        there = [out if word == "RUN" else word for word in question]
        assert finish(far("three", *there)) == finish(far("three", *here)).replace(
            str(clean.directory), out
        )
    assert "everything was up to date" in finish(far("four", *command))
    documents = list((tmp_path / "four/buckets/s3/runs/equal/documents").glob("*.arrow"))
    assert documents
    assert all(path.stat().st_blocks == 0 for path in documents), "nothing was fetched for that"


SMALL_BLOCKS = """
from pipeline.core import mirror
from pipeline.engine import blocks
blocks.BLOCK, blocks.LEAST = 128, 512
read_part = mirror.read_part
def note(path, start, stop):
    with open(path.parents[5] / "brought", "a") as log:
        print(path.parent.name, stop - start, file=log)
    return read_part(path, start, stop)
mirror.read_part = note
"""


@pytest.mark.slow
def test_a_host_that_makes_one_bucket_of_the_shuffle_brings_a_fraction(
    far: Callable[..., Program], s3: Any, collection: Collection, tmp_path: Path
) -> None:
    """It is killed while it does, and goes on."""
    out = "s3://runs/fraction"
    settings = ("pack.bucket_tokens=1024", "read.task_bytes=40 KiB")
    sets = [word for setting in settings for word in ("--set", setting)]
    command = ("run", collection.config, "--out", out, "--workers", 0, *sets)
    finish(far("one", *command, before=SMALL_BLOCKS))
    before = s3.tree_hash("fraction/")
    shuffle = {name: len(data) for name, data in s3.read("fraction/shuffle/").items()}
    s3.client().delete_object(Bucket="runs", Key="fraction/stream/train-000003.arrow")
    fault = "blocks.bring.written@3=kill"
    killed = far("two", *command, before=SMALL_BLOCKS, fault=fault)
    killed.communicate(240)
    assert killed.returncode == -signal.SIGKILL
    finish(far("two", *command, before=SMALL_BLOCKS))
    assert s3.tree_hash("fraction/") == before
    brought = [line.split() for line in (tmp_path / "two/brought").read_text().splitlines()]
    assert {directory for directory, _ in brought} == {"shuffle"}
    assert 0 < sum(int(size) for _, size in brought) < sum(shuffle.values()) * 0.5
    mirrored = tmp_path / "two/buckets/s3/runs/fraction/shuffle"
    assert all((mirrored / name).stat().st_blocks == 0 for name in shuffle)


@pytest.mark.slow
def test_other_commands_write_there_what_they_write_here(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean, tmp_path: Path
) -> None:
    finish(far("one", "run", collection.config, "--out", "s3://runs/source", "--workers", 0))
    plain = tmp_path / "plain.jsonl"
    lines = collection.plain_shard.read_text().splitlines(keepends=True)
    plain.write_text("".join(line for line in lines if line.rstrip().endswith("}")))
    for name, command, run in (
        ("export", ("export", "RUN"), clean.directory),
        ("repack", ("repack", "RUN", "--msl", 32), clean.directory),
        ("dedup", ("dedup", plain), None),
        ("clean", ("clean", plain), None),
    ):
        here = [run if word == "RUN" else word for word in command]
        there = ["s3://runs/source" if word == "RUN" else word for word in command]
        finish(far("two", *here, "--out", tmp_path / name))
        finish(far("two", *there, "--out", f"s3://runs/other-{name}"))
        assert s3.tree_hash(f"other-{name}/") == storage.tree_hash(tmp_path / name), name
        finish(far("three", "verify", f"s3://runs/other-{name}"))
    finish(far("two", "clean-up", "s3://runs/source"))
    assert not s3.names("source/shuffle/")
    finish(far("three", "verify", "s3://runs/source"))


@pytest.mark.slow
def test_damage_in_the_bucket_is_named_by_url_and_mended(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean
) -> None:
    out = "s3://runs/damaged"
    command = ("run", collection.config, "--out", out, "--workers", 0)
    finish(far("one", *command))
    client = s3.client()
    key = "damaged/hdf5/train/examples_000000.h5"
    body = bytearray(client.get_object(Bucket="runs", Key=key)["Body"].read())
    body[len(body) // 2] ^= 1
    client.put_object(Bucket="runs", Key=key, Body=bytes(body))
    for host in ("one", "two"):
        program = far(host, "verify", out)
        _, err = program.communicate()
        assert program.returncode == 4
        assert f"{out}/hdf5/train/examples_000000.h5: damaged" in err
    finish(far("two", *command))
    finish(far("one", "verify", out))
    assert s3.tree_hash("damaged/") == clean.tree_hash


def check_committed(s3: Any, prefix: str) -> None:
    """A manifest that is there names objects that are there, as they are."""
    objects = s3.read(prefix)
    manifest = json.loads(objects.get("manifest.json", b'{"files": []}'))
    for file in manifest["files"]:
        assert storage.hash_bytes(objects[file["path"]]) == file["hash"], file["path"]


def kill_and_resume(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean, number: int
) -> None:
    rng = random.Random(number)
    prefix = f"killed-{number}/"
    command = ("run", collection.config, "--out", f"s3://runs/{prefix}", "--workers", 0)
    fault = f"*@{rng.randrange(1, POINTS)}=kill"
    print(f"replay: kill_and_resume(..., {number}): {fault}")
    for attempt in range(6):
        s3.set_faults(FAULTS, seed=6 * number + attempt)
        program = far("one", *command, fault="" if attempt else fault)
        _, err = program.communicate(240)
        s3.set_faults(0)
        check_committed(s3, prefix)
        if program.returncode == 0:
            break
        assert program.returncode in (-signal.SIGKILL, 5), err
        assert program.returncode != 5 or f"s3://runs/{prefix[:-1]}" in err
    assert program.returncode == 0, err
    assert s3.tree_hash(prefix) == clean.tree_hash


@pytest.mark.crash
def test_a_killed_run_on_a_store_with_faults_resumes_to_equal_bytes(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean
) -> None:
    """Another kill every day."""
    kill_and_resume(far, s3, collection, clean, date.today().toordinal())


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_two_hundred_kills(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean
) -> None:
    for number in range(KILLS):
        kill_and_resume(far, s3, collection, clean, number)


def test_a_second_writer_is_refused_by_name(
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean
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
    far: Callable[..., Program], s3: Any, collection: Collection, clean: Clean
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
    far: Callable[..., Program], config: Path, out: Path, fault: str = ""
) -> tuple[int, str]:
    command = ("run", config, "--out", out, "--workers", 0)
    program = far("one", *command, fault=fault, before=READS_S3)
    _, err = program.communicate(240)
    return program.returncode, err


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_inputs_in_a_bucket_give_the_bytes_of_local_ones_whatever_fails(
    far: Callable[..., Program], stored: Callable[[str], Path], s3: Any, clean: Clean,
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
        assert storage.tree_hash(out) == clean.tree_hash
