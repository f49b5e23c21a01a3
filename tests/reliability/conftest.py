"""Shared means of the reliability tests: a tiny collection, the sweep program, `prep` in process.

Everything chosen at random comes from CHAOS_SEED (default: today's date), which a failure prints.
"""

import contextlib
import datetime
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dedup.user_cache import user_cache
from pipeline.commands.app import app, main, run_app
from pipeline.core import failpoint, hashes, zstd
from pipeline.core.mirror.paths import TEMP_MARK
from tests.forked import load_everything
from tests.programs import Program

SWEEP = Path(__file__).with_name("crash_sweep")
PREP = Path(sys.executable).with_name("prep")
VOCABULARY = (
    "river stone ledger morning kettle window garden copper notebook winter market bridge lantern "
    "harbour orchard thread sailor candle barley mirror saddle engine valley chimney island ribbon"
)
WORDS = VOCABULARY.split()
CONFIG = """\
name: tiny
inputs:
  - {name: tiny, path: raw}
read: {task_bytes: 14 KiB, max_bad_share: 5 %}
pack: {max_sequence_length: 64, bucket_tokens: 2048, validation_share: 10 %}
hdf5: {shard_bytes: 24 KiB}
"""


def _texts(rng: random.Random) -> list[str]:
    """90 texts of some 400 characters, near-duplicates and a few short ones among them."""
    texts: list[str] = []
    for index in range(90):
        words = [rng.choice(WORDS) for _ in range(60)]
        if index % 8 == 3:
            words = rng.choice(texts[:3]).split()
            words[rng.randrange(len(words))] = "changed"
        texts.append("too short" if index % 13 == 5 else " ".join(words))
    return texts


def _lines(texts: list[str], rng: random.Random) -> bytes:
    lines = []
    for index, text in enumerate(texts):
        source = "Books3" if index == 7 else rng.choice(("Wikipedia (en)", "Pile-CC"))
        lines.append(json.dumps({"text": text, "meta": {"pile_set_name": source}}))
    lines[11] = '{"text": cut'
    return ("\n".join(lines) + "\n").encode()


@dataclass(frozen=True)
class Collection:
    """The raw shards (two .jsonl.zst, one plain .jsonl, 35 kB of text) and their config."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "tiny.yaml"

    @property
    def plain_shard(self) -> Path:
        return self.directory / "raw/02.jsonl"

    def copy(self, directory: Path) -> "Collection":
        shutil.copytree(self.directory, directory)
        return Collection(directory)


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    directory = tmp_path_factory.mktemp("collection")
    rng = random.Random(5)
    texts = _texts(rng)
    raw = directory / "raw"
    raw.mkdir()
    for shard in range(3):
        data = _lines(texts[shard * 30 : shard * 30 + 30], rng)
        if shard < 2:
            (raw / f"{shard:02d}.jsonl.zst").write_bytes(zstd.compress(data))
        else:
            (raw / f"{shard:02d}.jsonl").write_bytes(data)
    (directory / "tiny.yaml").write_text(CONFIG)
    return Collection(directory)


@pytest.fixture(scope="session")
def chaos_seed() -> int:
    return int(os.environ.get("CHAOS_SEED", datetime.date.today().toordinal()))


@pytest.fixture
def rng(chaos_seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Random choices of one test; the seed stands in the output of a failure."""
    print(f"replay: CHAOS_SEED={chaos_seed} pytest -k {request.node.name!r} {request.node.path}")
    return random.Random(f"{chaos_seed} {request.node.name}")


# --- undisturbed runs ---


@dataclass(frozen=True)
class Clean:
    """An undisturbed run: its directory (never change it) and tree hash."""

    directory: Path
    tree_hash: str

    def copy(self, directory: Path) -> Path:
        shutil.copytree(self.directory, directory)
        return directory


@pytest.fixture(scope="session")
def clean(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """Made by a process of its own: what is compared with it has its memory elsewhere."""
    directory = tmp_path_factory.mktemp("clean") / "run"
    command = [PREP, "run", collection.config, "--out", directory, "--workers", "0"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return Clean(directory, hashes.tree_hash(directory))


# --- `prep` in this process and in others ---


@dataclass
class Outcome:
    """What a command did: exit code, what it printed, and how often it reached each fault point."""

    code: int
    out: str
    err: str
    hits: Counter[str] = field(default_factory=Counter)

    @property
    def tasks(self) -> Counter[str]:
        """How many tasks of each stage were started."""
        start = "task.start."
        return Counter(
            {name.removeprefix(start): n for name, n in self.hits.items() if name.startswith(start)}
        )


@pytest.fixture
def prep(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Outcome]:
    """Run a `prep` command in this process, with an optional fault plan."""

    def call(*arguments: object, fault: str = "") -> Outcome:
        monkeypatch.setenv("WAFERMILL_FAILPOINT", fault)
        monkeypatch.setattr(failpoint, "_plan", failpoint._read_plan())
        monkeypatch.setattr(failpoint, "_log", os.devnull)
        failpoint._hits.clear()
        command = functools.partial(app, args=[str(a) for a in arguments])
        capsys.readouterr()
        code = run_app(command, "prep")
        hits = Counter({name: n for name, n in failpoint._hits.items() if name != "*"})
        monkeypatch.setattr(failpoint, "_plan", None)
        monkeypatch.setattr(failpoint, "_log", "")
        return Outcome(code, *capsys.readouterr(), hits)

    return call


def prep_program(*arguments: object, fault: str = "") -> Program:
    """The `prep` command in a fork that leads a group of its own."""
    load_everything()

    def call() -> None:
        os.setsid()
        sys.argv = ["prep", *map(str, arguments)]
        main()

    return Program(call, WAFERMILL_FAILPOINT=fault)


def _heed_interrupts() -> None:
    """A suite that was itself started in the background has SIGINT ignored, and so its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Started:
    """`prep run` as a process group of its own: a fresh process with workers, else a fork."""

    process: subprocess.Popen[str] | Program
    out: Path

    def wait_for(self, relative: str, seconds: float = 180) -> None:
        """Until a file is there, or the process is over."""
        deadline = time.monotonic() + seconds
        while not (self.out / relative).exists() and self.process.poll() is None:
            assert time.monotonic() < deadline, f"no {relative} after {seconds} s"
            time.sleep(0.02)

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.finish()

    def finish(self, seconds: float = 120) -> Outcome:
        out, err = self.process.communicate(timeout=seconds)
        return Outcome(self.process.returncode, out, err)


@pytest.fixture
def start(collection: Collection) -> Iterator[Callable[..., Started]]:
    """Start `prep run` on the tiny collection; whatever is still alive at the end is killed."""
    running: list[Started] = []

    def call(out: Path, workers: int, fault: str = "", before: str = "") -> Started:
        command = [PREP, "run", collection.config, "--out", out, "--workers", workers]
        if not workers and not before:
            running.append(Started(prep_program(*command[1:], fault=fault), out))
            return running[-1]
        shell = before + 'exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
            env={**os.environ, "WAFERMILL_FAILPOINT": fault},
        )
        running.append(Started(process, out))
        return running[-1]

    yield call
    for started in running:
        if started.process.poll() is None:
            started.kill_group()


@pytest.fixture
def undamaged(clean: Clean) -> Callable[[Path], None]:
    """Assert that a directory equals the undisturbed run and holds no leftovers."""

    def check(directory: Path) -> None:
        assert hashes.tree_hash(directory) == clean.tree_hash
        assert not list(directory.rglob(f"{TEMP_MARK}*"))
        assert not list((directory / "journal").glob("records/*/*"))

    return check


# --- certificates as docs/clusters.md has them made ---

PAGE = Path(__file__).parents[2] / "docs/clusters.md"


def make_certificates(directory: Path) -> Path:
    """Run the page's own commands in a new directory, and write its dask.yaml; where these are."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine")
    part = PAGE.read_text().partition("## TLS")[2].partition("\n## ")[0]
    commands, config = (
        re.findall(rf"```{language}\n(.*?)```", part, re.S)[0] for language in ("bash", "yaml")
    )
    directory.mkdir()
    subprocess.run(["sh", "-e", "-c", commands], cwd=directory, check=True, capture_output=True)
    made = directory / "tls"
    (made / "dask.yaml").write_text(config.replace("/shared/tls", str(made)))
    return made


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "certificates")


# --- runs in buckets ---

HELD_SECONDS = 2.0
_FAR = f"""
from pipeline.core import lease
lease.SECONDS = {HELD_SECONDS}
from pipeline.commands.app import main
main()
"""
"""Fresh processes: the client of a store is of no use in a fork of a process that used one."""
Popen = subprocess.Popen[str]


_MADE_ONCE = (
    "kernels", "cleaning", "tokenizer-checks", "tokenizers", "alphabet", "licences", "methods",
    "templates", "titles",
)  # fmt: skip
"""What the cache of a user holds whatever is run: several MB, too much for a small disk."""


@pytest.fixture
def far(s3: Any, tmp_path: Path) -> Iterator[Callable[..., Popen]]:
    """Run a `prep` command on a host of this name, which is to say with a cache of its own, and the
    run directories of its buckets; `before` is run first, `program` instead of the command."""
    compiled = user_cache()
    assert compiled is not None
    is_root = os.geteuid() == 0 and shutil.which("setpriv")
    # root may read files whose bytes are in the bucket only: zeros, without a word
    as_user = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if is_root else []

    def call(
        host: str, *arguments: object, fault: str = "", before: str = "", program: str = _FAR
    ) -> Popen:
        cache = tmp_path / host
        cache.mkdir(exist_ok=True)
        for name in _MADE_ONCE:
            (compiled / name).mkdir(parents=True, exist_ok=True)
            if not (cache / name).exists():
                (cache / name).symlink_to(compiled / name)
        own = {"WAFERMILL_CACHE": str(cache), "WAFERMILL_FAILPOINT": fault}
        return subprocess.Popen(
            [*as_user, sys.executable, "-c", before + program, *map(str, arguments)],
            env={**os.environ, **s3.environment, **own},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    yield call
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"].encode()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(secret in data for data in (*written, *s3.read("").values()))


def finish(program: Popen) -> str:
    out, err = program.communicate(240)
    assert "hunter2" not in out + err
    assert program.returncode == 0, err
    return out


# --- the sweep program ---


@pytest.fixture
def sweep(tmp_path: Path, chaos_seed: int) -> Iterator[Callable[..., dict[str, Any]]]:
    """Run crash_sweep; in memory where possible, as only the death of processes matters."""
    memory = Path("/dev/shm")
    work = tmp_path / "work"
    if os.access(memory, os.W_OK):
        work = memory / f"wafermill-sweep-{os.getpid()}"

    def call(*arguments: object) -> dict[str, Any]:
        command = [sys.executable, SWEEP, *arguments, "--seed", chaos_seed, "--work", work]
        done = subprocess.run([str(a) for a in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        print(f"CHAOS_SEED={chaos_seed} replays this:", *command)
        print(done.stderr[-2000:])
        result: dict[str, Any] = json.loads(done.stdout)
        print({**result, "bad": result["bad"][:10], "names": "…"})
        return result

    yield call
    shutil.rmtree(work, ignore_errors=True)
