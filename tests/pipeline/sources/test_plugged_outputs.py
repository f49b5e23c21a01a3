"""Output formats that an installed distribution adds: the example of docs/extending.md, written by
`prep clean` and `prep export` in processes of their own, and checked."""

import contextlib
import json
import runpy
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, FunctionError
from pipeline.core.plugins import PlugIn, PlugInCode
from pipeline.sources import output_format
from pipeline.sources.output_format import (
    OutputFormat,
    PluggedForm,
    choose_form,
    load_plugged_outputs,
)
from tests.pipeline.plugins import example, install, installed_here, only_line, prep_with
from tests.pipeline.takedown.conftest import write_claim
from tests.pipeline.trees import differences

GROUP = "wafermill.outputs"
CODE = example("## An output format")


@pytest.fixture
def home(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    texts = [write_prose(seed, 60) for seed in range(6)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    install(
        tmp_path / "site", "my-output", {GROUP: {"csv": "my_output:CSV"}}, {"my_output.py": CODE}
    )
    return tmp_path


def prep(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return prep_with(home / "site", home, *words)


def test_cleaned_records(home: Path) -> None:
    """The same bytes on workers."""
    for out, workers in (("a", 0), ("b", 2)):
        done = prep(
            home, "clean", "web.jsonl", "--out", out, "--format", "csv", "--workers", workers
        )
        assert done.returncode == 0, done.stderr
    path = home / "a/cleaned/000000.csv"
    assert path.read_bytes() == (home / "b/cleaned/000000.csv").read_bytes()
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    rows = pyarrow.csv.read_csv(path, parse_options=options).to_pylist()
    texts = pq.read_table(home / "a/documents.parquet")
    assert len(rows) == len(texts) == 6
    stage = json.loads((home / "a/manifests/cleaned.json").read_bytes())
    assert stage["fields"]["software"]["output format csv"].startswith("my-output 1.0, code ")
    checked = prep(home, "verify", "a")
    assert checked.returncode == 0, checked.stderr


def test_exported_records(home: Path) -> None:
    (home / "c.yaml").write_text(
        "name: c\ninputs: [{name: web, path: web.jsonl}]\npack: {validation_share: 0.0}\n"
    )
    assert prep(home, "run", "c.yaml", "--out", "run", "--workers", 0).returncode == 0
    done = prep(home, "export", "run", "--out", "exported", "--format", "csv", "--workers", 0)
    assert done.returncode == 0, done.stderr
    assert (home / "exported/records/train/000000.csv").read_text().startswith('"text","meta"')
    checked = prep(home, "verify", "exported")
    assert checked.returncode == 0, checked.stderr
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:write_csv"}}, {})
    refused = prep(home, "export", "run", "--out", "other", "--format", "csv", "--workers", 0)
    assert refused.returncode == 2
    assert "my-output 1.0: its wafermill.outputs entry point csv" in refused.stderr
    assert "is a function; expected pipeline.sources.output_format.OutputFormat" in refused.stderr


def test_a_takedown(home: Path) -> None:
    """Without the package nothing is changed; with it the document goes, and the rest stays."""
    done = prep(home, "clean", "web.jsonl", "--out", "run", "--format", "csv", "--workers", 0)
    assert done.returncode == 0, done.stderr
    path = home / "run/cleaned/000000.csv"
    read = runpy.run_path(str(home / "site/my_output.py"))["read_csv"]
    before = read(path).to_pylist()
    shutil.copytree(home / "run", home / "as_it_was")
    claim = write_claim(home, documents=[before[2]["key"]])
    words = ("takedown", claim, "--run", "run", "--apply", "--by", "Jane Doe", "--mode", "mask")
    for command in (words, ("verify", "run")):
        refused = prep_with(home, home, *command)
        assert refused.returncode == 2
        assert "cleaned/000000.csv: in the output format csv of a package" in only_line(refused)
    assert differences(home / "run", home / "as_it_was") == []
    other = CODE.replace("QUOTE_ALL", "QUOTE_MINIMAL")
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:CSV"}}, {"my_output.py": other})
    refused = prep(home, *words)
    assert refused.returncode == 4
    assert "my-output 1.0 does not write these bytes again" in only_line(refused)
    assert differences(home / "run", home / "as_it_was") == []
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:CSV"}}, {"my_output.py": CODE})
    done = prep(home, *words)
    assert done.returncode == 0, done.stderr
    assert read(path).to_pylist() == [*before[:2], *before[3:]]
    assert before[2]["text"][:60].encode() not in path.read_bytes()
    checked = prep(home, "verify", "run")
    assert checked.returncode == 0, checked.stderr


def test_converted_documents(home: Path) -> None:
    texts = [json.loads(line)["text"] for line in (home / "web.jsonl").read_text().splitlines()]
    for _ in range(2):
        done = prep(home, "convert", "web.jsonl", "--to", "csv", "--out", "made")
        assert done.returncode == 0, done.stderr
    assert "was up to date" in done.stdout
    read = runpy.run_path(str(home / "site/my_output.py"))["read_csv"]
    assert read(home / "made/documents_000000.csv").to_pylist() == [{"text": t} for t in texts]
    facts = json.loads((home / "made/conversion.json").read_bytes())
    assert facts["settings"]["software"]["output format csv"].startswith("my-output 1.0, code ")
    refused = prep(home, "convert", "web.jsonl", "--to", "cvs", "--out", "other")
    assert "expected one of hdf5, corpus, bin, jsonl, jsonl.zst, parquet, csv" in refused.stderr


def plug_in_of(write: Any, read: Any) -> PlugIn[OutputFormat]:
    form = OutputFormat(name="csv", write=write, read=read)
    return PlugIn(GROUP, "csv", form, PlugInCode("my-output", "1.0", ""), root=__file__)


def lines_of(rows: pa.Table) -> list[bytes]:
    return [json.dumps(rows.to_pydict()).encode()]


def rows_of(path: Path) -> pa.Table:
    columns = json.loads(path.read_bytes())
    return pa.table({name: pa.array(column, pa.string()) for name, column in columns.items()})


def refuse_nul(rows: pa.Table) -> list[bytes]:
    if "\x00" in rows["text"].to_pylist():
        raise ValueError("NUL")
    return []


def failing(*_: object) -> Any:
    raise KeyError("boom")


@pytest.mark.parametrize(
    ("write", "read", "message"),
    [
        (failing, rows_of, r"failed on a trial .*, document .*test_plugged_.*py:\d+: KeyError"),
        (lines_of, failing, r"failed on a trial of \d+ rows: .*test_plugged_.*py:\d+: KeyError"),
        (lambda rows: "text", rows_of, "returned 'text' for a trial .*; expected bytes"),
        (lambda rows: b"text", rows_of, "returned b'text' for a trial"),
        (lambda rows: ["text"], rows_of, r"returned \['text'\] for a trial"),
        (lines_of, lambda path: [], r"returned \[\] for a trial .*; expected a table of strings"),
        (lines_of, lambda path: rows_of(path).slice(0, 3), r"reads 3 rows of .*wrote \d+ of"),
        (lines_of, lambda path: rows_of(path).rename_columns(list("abcde")), "rows of 'a', 'b'"),
        (
            lambda rows: [json.dumps(rows.to_pydict()).replace('"007"', '"7"').encode()],
            rows_of,
            "reads '7', where it wrote '007'",
        ),
        (lambda rows: [b" " * next(COUNT), *lines_of(rows)], rows_of, "other bytes"),
    ],
)
def test_formats_that_are_refused(write: Any, read: Any, message: str) -> None:
    """They are tried out before the first use."""
    with pytest.raises(ConfigError, match=message) as caught:
        output_format._try_out(plug_in_of(write, read))
    assert str(caught.value).startswith("my-output 1.0: its wafermill.outputs entry point csv ")


COUNT = iter(range(100))


def test_a_sound_format() -> None:
    output_format._try_out(plug_in_of(lines_of, rows_of))


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Puts a format of this name into this process."""
    with contextlib.ExitStack() as stack:

        def put(name: str) -> None:
            code = {"put_output.py": CODE.replace('name="csv"', f"name={name!r}")}
            install(tmp_path, "my-output", {GROUP: {name: "put_output:CSV"}}, code)
            stack.enter_context(installed_here(tmp_path, "put_output", load_plugged_outputs))

        yield put


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../csv", "has a name that file names cannot end in"),
        ("my.jsonl", "has a name that file names cannot end in"),
        ("bin", "has the name of a built-in"),
    ],
)
def test_names(name: str, message: str, installed: Callable[[str], None]) -> None:
    installed(name)
    with pytest.raises(ConfigError, match=f"my-output 1.0: its .* {message}"):
        load_plugged_outputs()


def test_a_failure_in_a_run(
    installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names file, document and line; another version is refused."""
    installed("csv")
    form = choose_form("csv")
    assert isinstance(form, PluggedForm)
    rows = pa.table({"key": ["a", "b"], "text": ["x", "\x00"]})
    broken = replace(load_plugged_outputs()["csv"].value, write=refuse_nul)
    monkeypatch.setitem(
        load_plugged_outputs(), "csv", replace(load_plugged_outputs()["csv"], value=broken)
    )
    with pytest.raises(FunctionError, match=r"on cleaned/0\.csv, document b: ValueError: NUL"):
        form.write(rows, "cleaned/0.csv")
    other = PluggedForm("csv", PlugInCode("my-output", "0.9", "abc"))
    message = (
        "the run began with the output format csv of my-output 0.9, code abc, but on .* it is my"
    )
    with pytest.raises(ConfigError, match=message):
        other.write(rows, "cleaned/0.csv")
    gone = PluggedForm("tsv", PlugInCode("my-output", "0.9", "abc"))
    with pytest.raises(ConfigError, match="it is not installed; install the same on every worker"):
        gone.write(rows, "cleaned/0.csv")
