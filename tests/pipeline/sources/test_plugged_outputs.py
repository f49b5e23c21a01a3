"""Output formats that an installed distribution adds: the example of docs/extending.md, written by
`prep clean` and `prep export`, and checked; on a worker too, in processes of their own."""

import contextlib
import json
import runpy
import shutil
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
from tests.forked import Ended
from tests.pipeline.plugins import (
    example,
    install,
    installed_here,
    only_line,
    prep_here,
    prep_with,
)
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


Run = Callable[..., Ended]


@pytest.fixture
def of_site(home: Path, prep: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`prep` in this process, with what is installed at its first argument."""
    monkeypatch.chdir(home)
    return prep_here(prep, "my_output", load_plugged_outputs)


@pytest.fixture
def here(home: Path, of_site: Run) -> Run:
    """`prep` in this process, with what is installed at home."""
    return lambda *words: of_site(home / "site", *words)


def test_cleaned_records(home: Path, here: Run) -> None:
    """The same bytes on a worker."""
    words = ("clean", "web.jsonl", "--format", "csv", "--out")
    for done in (
        here(*words, "a", "--workers", 0),
        prep_with(home / "site", home, *words, "b", "--workers", 1),
    ):
        assert done.code == 0, done.err
    path = home / "a/cleaned/000000.csv"
    assert path.read_bytes() == (home / "b/cleaned/000000.csv").read_bytes()
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    rows = pyarrow.csv.read_csv(path, parse_options=options).to_pylist()
    texts = pq.read_table(home / "a/documents.parquet")
    assert len(rows) == len(texts) == 6
    stage = json.loads((home / "a/manifests/cleaned.json").read_bytes())
    assert stage["fields"]["software"]["output format csv"].startswith("my-output 1.0, code ")
    checked = here("verify", "a")
    assert checked.code == 0, checked.err


def test_exported_records(home: Path, here: Run) -> None:
    (home / "c.yaml").write_text(
        "name: c\ninputs: [{name: web, path: web.jsonl}]\npack: {validation_share: 0.0}\n"
    )
    assert here("run", "c.yaml", "--out", "run", "--workers", 0).code == 0
    done = here("export", "run", "--out", "exported", "--format", "csv", "--workers", 0)
    assert done.code == 0, done.err
    assert (home / "exported/records/train/000000.csv").read_text().startswith('"text","meta"')
    checked = here("verify", "exported")
    assert checked.code == 0, checked.err
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:write_csv"}}, {})
    refused = here("export", "run", "--out", "other", "--format", "csv", "--workers", 0)
    assert refused.code == 2
    assert "my-output 1.0: its wafermill.outputs entry point csv" in refused.err
    assert "is a function; expected pipeline.sources.output_format.OutputFormat" in refused.err


def test_a_takedown(home: Path, here: Run, of_site: Run) -> None:
    """Without the package nothing is changed; with it the document goes, and the rest stays."""
    done = here("clean", "web.jsonl", "--out", "run", "--format", "csv", "--workers", 0)
    assert done.code == 0, done.err
    path = home / "run/cleaned/000000.csv"
    read = runpy.run_path(str(home / "site/my_output.py"))["read_csv"]
    before = read(path).to_pylist()
    shutil.copytree(home / "run", home / "as_it_was")
    claim = write_claim(home, documents=[before[2]["key"]])
    words = ("takedown", claim, "--run", "run", "--apply", "--by", "Jane Doe", "--mode", "mask")
    for command in (words, ("verify", "run")):
        refused = of_site(home, *command)
        assert refused.code == 2
        assert "cleaned/000000.csv: in the output format csv of a package" in only_line(refused)
    assert differences(home / "run", home / "as_it_was") == []
    other = CODE.replace("QUOTE_ALL", "QUOTE_MINIMAL")
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:CSV"}}, {"my_output.py": other})
    refused = here(*words)
    assert refused.code == 4
    assert "my-output 1.0 does not write these bytes again" in only_line(refused)
    assert differences(home / "run", home / "as_it_was") == []
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:CSV"}}, {"my_output.py": CODE})
    done = here(*words)
    assert done.code == 0, done.err
    assert read(path).to_pylist() == [*before[:2], *before[3:]]
    assert before[2]["text"][:60].encode() not in path.read_bytes()
    checked = here("verify", "run")
    assert checked.code == 0, checked.err


def test_converted_documents(home: Path, here: Run) -> None:
    texts = [json.loads(line)["text"] for line in (home / "web.jsonl").read_text().splitlines()]
    for _ in range(2):
        done = here("convert", "web.jsonl", "--to", "csv", "--out", "made")
        assert done.code == 0, done.err
    assert "was up to date" in done.out
    read = runpy.run_path(str(home / "site/my_output.py"))["read_csv"]
    assert read(home / "made/documents_000000.csv").to_pylist() == [{"text": t} for t in texts]
    facts = json.loads((home / "made/conversion.json").read_bytes())
    assert facts["settings"]["software"]["output format csv"].startswith("my-output 1.0, code ")
    refused = here("convert", "web.jsonl", "--to", "cvs", "--out", "other")
    assert (
        "expected one of hdf5, corpus, bin, mds, litdata, tokens, jsonl, jsonl.zst, parquet, csv"
        in refused.err
    )


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
