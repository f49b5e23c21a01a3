"""A small corpus that shows every end a record can have, runs of it, and the `prep` command.

The corpus is a function of nothing but this file: words are drawn by xxh3 of a counter, never by a
random module, so the golden hashes hold on every Python version.
"""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import pipeline
from pipeline.commands import app
from pipeline.core import zstd
from pipeline.engine import executor
from pipeline.stories import loop
from pipeline.stories.loop import Manifest
from tests.forked import Ended

REPOSITORY = Path(__file__).resolve().parents[2]

WORDS = (
    "amber", "basin", "candle", "drift", "ember", "field", "garden", "harbour", "island",
    "journey", "kettle", "lantern", "meadow", "north", "orchard", "paper", "quarry", "river",
    "stone", "timber", "under", "valley", "winter", "yellow", "zenith", "answer", "bridge",
    "carry", "dance", "early", "figure", "ground", "hollow", "inside", "jacket", "keeper",
    "letter", "mirror", "number", "ocean", "picture", "quiet", "rather", "silver", "travel",
    "useful", "visit", "wander", "across", "before", "circle", "decide", "engine", "follow",
    "gather", "hidden", "café", "naïve", "Straße", "зима", "مرحبا", "東京", "don't",
    "mother-in-law", "3.14", "1999", "(sic)", "[note]", "x=y", "<tag>", "#7",
)  # fmt: skip

CONFIG = """\
name: tiny
seed: 7
inputs:
  - name: web
    path: raw/web
  - name: papers
    path: raw/papers
read:
  task_bytes: 100000
  max_bad_share: 10 %
dedup:
  source_priority: [Wiki, Code]
pack:
  max_sequence_length: 128
  validation_share: 5 %
  bucket_tokens: 8192
hdf5:
  shard_bytes: 65536
"""


@dataclass(frozen=True)
class Made:
    """One record as it was written: where, its bytes, and what it is (`kind`)."""

    input: str
    path: str
    ordinal: int
    line: int
    raw: bytes
    kind: str
    text: str | None
    source: str
    licence: str


@dataclass
class Corpus:
    """A directory with tiny.yaml and raw/, and every record in it."""

    root: Path
    records: list[Made] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.root / "tiny.yaml"

    def of_kind(self, kind: str) -> list[Made]:
        return [r for r in self.records if r.kind == kind]


def prose(number: int, words: int = 120) -> str:
    """Text number `number`: words drawn by a hash, so that no two texts are alike."""
    drawn = [
        WORDS[xxhash.xxh3_64_intdigest(f"{number}/{i}".encode()) % len(WORDS)] for i in range(words)
    ]
    lines = [" ".join(drawn[i : i + 15]) for i in range(0, words, 15)]
    return ".\n".join(lines) + "."


def with_edit(text: str) -> str:
    """A near-duplicate: one word at the end is another one."""
    return text.rpartition(" ")[0] + " elsewhere."


class Writer:
    """Collects the records of one file, then writes it in the format its name says."""

    def __init__(self, corpus: Corpus, input_name: str, path: str) -> None:
        self.corpus, self.input, self.path = corpus, input_name, path
        self.lines: list[bytes] = []
        self.rows: list[tuple[str | None, str]] = []
        self.ordinal = 0

    def add(self, kind: str, text: str, source: str = "", licence: str = "") -> None:
        meta = {k: v for k, v in (("pile_set_name", source), ("license", licence)) if v}
        raw = json.dumps({"text": text, "meta": meta}, ensure_ascii=self.ordinal % 2 == 0).encode()
        self.rows.append((text, json.dumps(meta)))
        self._note(kind, b"" if self.path.endswith(".parquet") else raw, text, source, licence)

    def add_raw(self, kind: str, raw: bytes) -> None:
        """A bad record."""
        self._note(kind, raw, None, "", "")

    def add_null(self) -> None:
        """A parquet row without a text."""
        self.rows.append((None, "{}"))
        self._note("text_not_string", b"", None, "", "")

    def add_blank(self) -> None:
        self.lines.append(b"  ")

    def _note(self, kind: str, raw: bytes, text: str | None, source: str, licence: str) -> None:
        self.lines.append(raw)
        line = 0 if self.path.endswith(".parquet") else len(self.lines)
        made = Made(
            input=self.input,
            path=self.path,
            ordinal=self.ordinal,
            line=line,
            raw=raw,
            kind=kind,
            text=text,
            source=source or self.input,
            licence=licence,
        )
        self.corpus.records.append(made)
        self.ordinal += 1

    def write(self) -> None:
        path = self.corpus.root / "raw" / self.input / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(line + b"\n" for line in self.lines)
        if path.suffix == ".parquet":
            texts, metas = zip(*self.rows, strict=True)
            pq.write_table(pa.table({"text": pa.array(texts), "meta": pa.array(metas)}), path)
        elif path.suffix == ".gz":
            path.write_bytes(gzip.compress(data, mtime=0))
        elif path.suffix == ".zst":
            half = len(data) // 2
            path.write_bytes(zstd.compress(data[:half]) + zstd.compress(data[half:]))
        else:
            path.write_bytes(data)


SHARDS = (("papers", "part-0.parquet"), ("web", "a.jsonl"), ("web", "b.jsonl.zst"),
          ("web", "sub/c.jsonl.gz"), ("web", "d.jsonl"))  # fmt: skip
PLAIN_PER_SHARD = 34


def build_corpus(root: Path, shards: tuple[tuple[str, str], ...] = SHARDS) -> Corpus:
    """Write the corpus: five shards in four formats, 205 records."""
    corpus = Corpus(root)
    root.mkdir(parents=True, exist_ok=True)
    corpus.config.write_text(CONFIG)
    for shard, (name, path) in enumerate(shards):
        writer = Writer(corpus, name, path)
        for i in range(PLAIN_PER_SHARD):
            source = ("Wiki", "Code", "")[i % 3]
            words = 60 + (i * 37) % 150
            writer.add("plain", prose(shard * 1000 + i, words), source, ("cc0", "mit", "")[i % 3])
        _peculiar(writer, shard)
        writer.write()
    return corpus


def _peculiar(writer: Writer, shard: int) -> None:
    """The records that are not plain, some in every shard."""
    family = prose(90_000, 300)
    writer.add("near", family if shard == 0 else with_edit(family), ("", "Code", "Wiki")[shard % 3])
    writer.add("exact", prose(91_000, 150), "Code")
    writer.add("short", "too short " * 3, "Wiki")
    writer.add("empty", "\x00\x01\x02\x7f", "Wiki")
    if writer.path.endswith(".parquet"):
        writer.add_null()
        return
    writer.add_blank()
    if shard == 1:
        book = prose(92_000, 200)
        writer.add("books3", book, "Books3", "mit")
        writer.add("sibling", book, "Code", "cc0")
        writer.add("marker", prose(93_000) + "\nDownloaded from z-lib.org today.", "Wiki", "cc0")
        writer.add("mention", prose(94_000) + " the name Bibliotik is only mentioned", "Wiki")
        writer.add("separator", prose(95_000) + "<|endoftext|>" + prose(95_001), "Code")
        mojibake = prose(96_000).encode().decode("latin-1")
        writer.add("mojibake", "schÃ¶n, daÃŸ " * 3 + mojibake, "Wiki")
        writer.add("entities", "a &lt;b&gt; &amp; c\r\nd\x1b[1me\x07 " + prose(97_000), "Wiki")
    if shard == 2:
        writer.add_raw("bad_json", b'{"text": "cut off in the mid')
        writer.add_raw("no_text", b'{"body": "another field", "meta": {}}')
        writer.add_raw("not_utf8", b'{"text": "caf\xe9"}')
        writer.add_raw("surrogate", b'{"text": "half \\ud83d of a pair"}')
        writer.add_raw("text_not_string", b'{"text": 17}')
        writer.add_raw("not_object", b"[1, 2]")
        writer.add_raw("bad_meta", b'{"text": "x", "meta": "not an object"}')


@dataclass(frozen=True)
class SmallRun:
    """A finished run of the corpus."""

    corpus: Corpus
    directory: Path
    manifest: Manifest

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.directory / name)

    def json(self, name: str) -> Any:
        return json.loads((self.directory / name).read_bytes())


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk(request: pytest.FixtureRequest) -> Iterator[None]:
    """Durability is the subject of core/ and of tests/reliability; here fsync is only waiting."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name != "core":
            patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def make_corpus() -> Callable[..., Corpus]:
    """`build_corpus`, for tests that change what they read."""
    return build_corpus


@pytest.fixture(scope="session")
def new_shard() -> Callable[[Corpus, str, str], Writer]:
    """A writer of one more shard of a corpus: (corpus, input, path)."""
    return Writer


@pytest.fixture(scope="session")
def write_prose() -> Callable[..., str]:
    """`prose`: text number n, of so many words."""
    return prose


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The corpus; read only."""
    return build_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def small_run(
    corpus: Corpus, tmp_path_factory: pytest.TempPathFactory, prep_process: Callable[..., Ended]
) -> SmallRun:
    """One run of the corpus, by a process of its own, so that runs of this process and its forks
    are compared with bytes of another address layout; read only."""
    out = tmp_path_factory.mktemp("small") / "run"
    ended = prep_process("run", corpus.config, "--out", out, "--workers", 0)
    assert ended.code == 0, ended.err
    return SmallRun(corpus, out, pipeline.run(corpus.config, out, 0))


@pytest.fixture
def prep(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """The `prep` command inside this process."""

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(sys, "argv", ["prep", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            app.main()
        out, err = capsys.readouterr()
        return Ended(int(end.value.code or 0), out, err)

    return call


@pytest.fixture(scope="session")
def prep_process() -> Callable[..., Ended]:
    """The `prep` command as a process of its own; keywords are environment variables. It costs four
    seconds: where any process will do, tests.forked has one."""

    def call(
        *arguments: object, cwd: Path | None = None, timeout: float = 900, **env: str
    ) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def worker_processes() -> Iterator[executor.Executor]:
    """Two Dask workers, started when a test first asks: a pair of its own costs ten seconds. They
    look at the clock less often than Dask likes, as they are idle most of the time."""
    import dask
    import distributed  # noqa: F401 - its settings have to be there before they are changed

    often = (
        "admin.tick.interval",
        "admin.system-monitor.interval",
        "worker.memory.monitor-interval",
    )
    with contextlib.ExitStack() as running:
        with dask.config.set({f"distributed.{name}": "10s" for name in often}):
            where = running.enter_context(executor.executor(2, 0))
        yield where


@pytest.fixture
def two_workers(worker_processes: executor.Executor, monkeypatch: pytest.MonkeyPatch) -> int:
    """2, which here means those workers wherever a command of this process asks for two."""

    @contextlib.contextmanager
    def shared(workers: int | None, *where: Any) -> Iterator[executor.Executor]:
        if workers == worker_processes.workers:
            yield worker_processes
            return
        with executor.executor(workers, *where) as own:
            yield own

    monkeypatch.setattr(loop, "executor", shared)
    return worker_processes.workers
