"""Formats that an installed distribution adds: the example of docs/extending.md in this process and
in processes that start with a worker, and the errors of plug-ins that are broken."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, FunctionError
from pipeline.core.plugins import PlugInCode
from pipeline.sources.files import PluggedFile
from pipeline.sources.formats import _map_plugged, find_named_format, load_plugged_formats
from pipeline.sources.record import Place, Record, RecordRules, TypedField
from tests.forked import Ended
from tests.pipeline.plugins import (
    REPOSITORY,
    example,
    install,
    installed_here,
    only_line,
    prep_here,
    prep_with,
)

GROUP = "wafermill.readers"
CODE = example("## A reader")
CONFIG = """\
name: tabs
inputs:
  - name: web
    path: raw/*.tsv*
    meta_fields: {meta.title: string}
  - name: notes
    path: raw/notes
    format: tsv
    template: "{meta.title}: {text}"
read: {max_bad_share: 50 %}
pack: {max_sequence_length: 64, validation_share: 0.0}
"""


def install_tsv(home: Path, code: str, entry: str = "my_formats:TSV") -> None:
    install(home / "site", "my-formats", {GROUP: {"tsv": entry}}, {"my_formats.py": code})


@pytest.fixture
def home(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    """Three files of tabs, one of them compressed and one of another name."""
    raw = tmp_path / "raw"
    (raw / "notes").mkdir(parents=True)
    texts = [write_prose(seed, 60).replace("\n", " ") for seed in range(6)]
    lines = [f"Title {n}\t{text}\n" for n, text in enumerate(texts)]
    (raw / "a.tsv").write_text("".join([*lines[:3], "no tab\n"]))
    (raw / "b.tsv.gz").write_bytes(gzip.compress("".join(lines[3:5]).encode()))
    (raw / "notes/one.dat").write_text(lines[5])
    (tmp_path / "tabs.yaml").write_text(CONFIG)
    install(
        tmp_path / "site", "my-formats", {GROUP: {"tsv": "my_formats:TSV"}}, {"my_formats.py": CODE}
    )
    return tmp_path


Run = Callable[..., Ended]


@pytest.fixture
def here(home: Path, prep: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`prep` in this process, with what is installed at home."""
    monkeypatch.chdir(home)
    call = prep_here(prep, "my_formats", load_plugged_formats, _map_plugged)
    return lambda *words: call(home / "site", *words)


RUN = ("run", "tabs.yaml", "--workers", 0, "--out", "out")


def with_worker(home: Path, out: str, *words: object) -> Ended:
    """`prep run` in a process of its own, which starts another."""
    words = ("run", "tabs.yaml", "--out", out, "--workers", 1, *words)
    return prep_with(home / "site", home, *words)


def test_a_run(home: Path, here: Run) -> None:
    """Its records are documents like any other, the same on a worker, and read again when its code
    changes."""
    done = here(*RUN)
    assert done.code == 0, done.err
    documents = pq.read_table(home / "out/documents.parquet")
    kept = [row for row in documents.to_pylist() if row["state"] == "kept"]
    titles = sorted(row["meta_title"] for row in kept if row["meta_title"])
    assert titles == [f"Title {n}" for n in range(5)]
    assert "no_text" in documents["reason"].to_pylist()
    clean = json.loads((home / "out/manifests/clean.json").read_bytes())
    software = clean["fields"]["software"]["input format tsv"]
    assert software.startswith("my-formats 1.0, code ")
    workers = with_worker(home, "workers")
    assert workers.code == 0, workers.err
    manifests = [json.loads((home / d / "manifest.json").read_bytes()) for d in ("out", "workers")]
    assert manifests[0] == manifests[1]
    install_tsv(home, CODE + "\n# changed")
    again = here(*RUN)
    assert again.code == 0, again.err
    changed = json.loads((home / "out/manifests/clean.json").read_bytes())
    assert changed["fields"]["software"]["input format tsv"] != software
    assert changed["fingerprint"] != clean["fingerprint"]


def test_copied_records(home: Path, here: Run) -> None:
    """`prep dedup` copies its records byte for byte."""
    lines = (home / "raw/a.tsv").read_text().splitlines(keepends=True)[:3]
    (home / "raw/a.tsv").write_text("".join([*lines, lines[0]]))
    done = here("dedup", "raw/a.tsv", "--out", "deduplicated", "--workers", 0)
    assert done.code == 0, done.err
    assert (home / "deduplicated/records/a.tsv").read_text() == "".join(lines)


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        ("missing:TSV", "", "does not load: ModuleNotFoundError: No module named 'missing'"),
        ("my_formats:TVS", CODE, "has no attribute 'TVS'"),
        (
            "my_formats:read_tsv",
            CODE,
            "is a function; expected pipeline.sources.raw_format.RawFormat",
        ),
        ("my_formats:TSV", CODE + "\n1 / 0\n", "my_formats.py:30: ZeroDivisionError"),
        (
            "my_formats:TSV",
            CODE.replace('    parts="lines",\n', ""),
            "missing 1 required keyword-only",
        ),
        ("my_formats:TSV", CODE.replace('name="tsv"', 'name="tabs"'), "another name, tabs"),
        (
            "my_formats:TSV",
            CODE.replace(".tsv", ".x.jsonl"),
            "the suffix .x.jsonl, which is built-in",
        ),
        ("my_formats:TSV", CODE.replace(".tsv", "tsv"), "begins with no dot"),
    ],
)
def test_broken(entry: str, code: str, message: str, home: Path, here: Run) -> None:
    """One line that names the distribution."""
    install_tsv(home, code, entry)
    done = here(*RUN)
    assert done.code == 2, done.err
    (line,) = done.err.strip().splitlines()
    assert "my-formats 1.0: its wafermill.readers entry point tsv" in line
    assert message in line
    assert "repair or uninstall" in line


def test_names_that_are_taken(home: Path, here: Run) -> None:
    install(home / "site", "other", {GROUP: {"tsv": "my_formats:TSV"}}, {})
    assert (
        "other 1.0: its wafermill.readers entry point tsv has the name of one of my-f"
        in here(*RUN).err
    )
    (home / "site/other-1.0.dist-info/entry_points.txt").unlink()
    install(home / "site", "my-formats", {GROUP: {"jsonl": "my_formats:TSV"}}, {})
    assert "has the name of a built-in" in here(*RUN).err


def test_unknown_format(home: Path, here: Run) -> None:
    (home / "tabs.yaml").write_text(CONFIG.replace("format: tsv", "format: tvs"))
    done = here(*RUN)
    assert done.code == 2
    assert "input 'notes': there is no input format 'tvs'; did you mean 'tsv'?" in done.err


def test_a_failure_in_a_run(home: Path, here: Run) -> None:
    """One line: file, line, package, and where in its code; skipping damaged files is no way past
    it."""
    broken = CODE.replace(
        "    if not tab:", '    if title == "Title 1":\n        1 / 0\n    if not tab:'
    )
    install_tsv(home, broken)
    done = with_worker(home, "out", "--set", "read.on_bad_shard=skip")
    assert done.code == 3
    line = only_line(done)
    assert line.startswith("prep: my-formats 1.0: its wafermill.readers entry point tsv failed on ")
    assert "raw/a.tsv after line 1: " in line
    assert line.endswith("site/my_formats.py:13: ZeroDivisionError: division by zero")
    install_tsv(home, CODE)
    assert here(*RUN).code == 0


@pytest.fixture
def read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[list[Any]], list[Any]]]:
    """What a reader that yields these yields."""
    install(tmp_path, "my-formats", {GROUP: {"tsv": "read_here:TSV"}}, {"read_here.py": CODE})
    columns = (TypedField("meta_year", "int", None),)
    rules = RecordRules(text_key="text", max_document_bytes=99, sources=None, fields=columns)

    def read_items(items: list[Any]) -> list[Any]:
        monkeypatch.setattr("read_here.read_by_line", lambda *given: items)
        stream: Any = find_named_format("tsv")
        return list(stream.read("raw/a.tsv", iter([b"x"]), rules, None))

    with installed_here(tmp_path, "read_here", load_plugged_formats):
        find_named_format("tsv")
        yield read_items


GOOD = Record(place=Place(0, 1, 0, 9), text="x", source=None, meta="{}", licence="", fields=(1999,))
NEXT = replace(GOOD, place=Place(1, 2, 10, 9))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (None, "failed on raw/a.tsv: TypeError: 'NoneType' object is not iterable"),
        ([GOOD, None], "yielded None for raw/a.tsv after line 1: expected a Record or a BadRecord"),
        (["x"], "yielded 'x' for raw/a.tsv: expected a Record"),
        ([GOOD, GOOD], "after line 1: place: expected one after that of the record before"),
        ([replace(GOOD, place=Place(0, 1, -1, 9))], "place: expected whole numbers from 0 on"),
        ([replace(GOOD, text=b"x")], "text: b'x' is of the wrong type"),
        ([replace(GOOD, text="\ud800")], "an unpaired surrogate"),
        ([replace(GOOD, meta="[]")], "meta: expected a JSON object"),
        ([replace(GOOD, meta="{")], "meta: expected a JSON object"),
        ([replace(GOOD, fields=())], "fields: expected the values of meta_year .int., as assemb"),
        ([replace(GOOD, fields=("x",))], "fields: expected the values of meta_year .int., as"),
    ],
)
def test_records_are_checked(items: Any, message: str, read: Callable[[Any], list[Any]]) -> None:
    assert read([GOOD, NEXT]) == [GOOD, NEXT]
    with pytest.raises(FunctionError, match=message) as caught:
        read(items)
    assert str(caught.value).startswith("my-formats 1.0: its wafermill.readers entry point tsv ")


def test_another_installation(read: object) -> None:
    """A file that another version began to read is a wrong installation, never a bad file."""
    assert find_named_format("tsv").name == "tsv"
    code = PlugInCode("my-formats", "0.9", "abc")
    old = PluggedFile("web", "a.tsv", 1, "raw/a.tsv", code=code)
    expected = r"the reader of raw/a\.tsv of my-formats 0\.9, code abc, but on .* it is my-fo"
    with pytest.raises(ConfigError, match=expected):
        _ = old.format
    gone = PluggedFile("web", "a.abc", 1, "raw/a.abc", code=PlugInCode("abc", "2", "def"))
    with pytest.raises(
        ConfigError, match=r"code def, but on .* it is not installed; install the s"
    ):
        _ = gone.format


CLUSTER = """\
import sys
from distributed import LocalCluster
with LocalCluster(
    n_workers=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None
) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


def test_a_worker_with_another_version(home: Path, here: Run) -> None:
    """On a cluster whose worker has version 1.1: one line that names both, and no documents."""
    other = home / "other"
    changed = {"my_formats.py": CODE + "\n# changed"}
    install(other, "my-formats", {GROUP: {"tsv": "my_formats:TSV"}}, changed, version="1.1")
    environment = {**os.environ, "PYTHONPATH": f"{other}{os.pathsep}{REPOSITORY}"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        cwd=home,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        assert cluster.stdout
        address = cluster.stdout.readline().strip()
        ended = here("run", "tabs.yaml", "--out", "out", "--cluster", address)
        cluster.communicate()
    assert ended.code == 2, ended.err
    line = only_line(ended)
    assert "the run began with the reader of " in line and "of my-formats 1.0, code " in line
    assert "it is my-formats 1.1, code " in line
    assert line.endswith(
        "install the same on every worker and change nothing while a run is under way"
    )
    assert not list((home / "out").glob("documents/*"))
