"""Custom filters in a run: the example of docs/filters.md with and without a worker, what a changed
file runs again, and the errors of the command."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.hashes import hash_file
from pipeline.runs import layout
from pipeline.stories.clean import CleaningOptions, clean_settings, make_clean_story
from pipeline.stories.loop import Manifest
from pipeline.stories.run import run_preparation
from pipeline.stories.verify import verify_run
from tests.forked import Ended, prep_in_fork

Prep = Callable[..., Any]
REPOSITORY = Path(__file__).resolve().parents[3]
LETTERS, NOTICE = "custom_mostly_letters", "custom_no_notice"
TEXTS = (
    "Plain words make a document.", "12 34 56 78 90", "Please ACCEPT all cookies of this page.",
    "accept all cookies 1234567890 1234567890 1234567890", "More words, and no numbers.",
)  # fmt: skip
REASONS = ["", LETTERS, NOTICE, LETTERS, ""]


def blocks() -> tuple[str, str]:
    """The functions and the config of docs/filters.md."""
    page = (REPOSITORY / "docs/filters.md").read_text("utf-8")
    section = page[page.index("## A filter of your own") :]
    code, config = (re.search(rf"^```{kind}\n(.*?)^```$", section, re.M | re.S)
                    for kind in ("python", "yaml"))  # fmt: skip
    assert code and config
    return code[1], config[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the example, and the raw shard that its config names."""
    directory = tmp_path / "home"
    directory.mkdir()
    code, config = blocks()
    (directory / "my_rules.py").write_text(code)
    (directory / "rules.yaml").write_text(config)
    lines = [json.dumps({"text": text, "meta": {"n": n}}) + "\n" for n, text in enumerate(TEXTS)]
    (directory / "web.jsonl").write_text("".join(lines))
    return directory


def clean(home: Path, out: Path, workers: int = 0, *overrides: str) -> Manifest:
    loaded = clean_settings(home / "rules.yaml", (), CleaningOptions(), overrides)
    return run_preparation(loaded, out, workers, story=make_clean_story("jsonl"))


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def command(home: Path, out: Path, *arguments: object) -> Ended:
    """`prep clean` in a fork, in the directory of the example, whose modules it can import."""
    return prep_in_fork("clean", "--config", "rules.yaml", "--out", out, *arguments, cwd=home)


def test_the_example(home: Path, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "out"
    clean(home, out)
    verify_run(out)
    assert [row["reason"] for row in rows(out / layout.DOCUMENTS)] == REASONS
    ledger = json.loads((out / layout.LEDGER).read_bytes())
    dropped = {
        name: tally["documents"] for name, tally in ledger["sources"]["web"]["dropped"].items()
    }
    assert dropped == {LETTERS: 2, NOTICE: 1}
    decisions = rows(out / layout.DECISIONS)
    assert [d["reason"] for d in decisions] == [
        "0% are letters", "The filter no_notice refuses it.", "31% are letters",
    ]  # fmt: skip
    evidence = rows(out / layout.EVIDENCE)
    assert [e["rule"] for e in evidence] == [LETTERS, NOTICE, LETTERS, NOTICE]
    assert sorted(n for d in decisions for n in d["evidence"]) == sorted(
        e["evidence_id"] for e in evidence
    )
    listed = prep("inspect", out, "--dropped", LETTERS)
    assert "web/web.jsonl:2" in listed.out and "'0% are letters'" in listed.out
    explained = prep("explain", out, decisions[-1]["doc_key"].hex())
    assert "'31% are letters'" in explained.out and "no_notice" in explained.out


def test_the_manifest_and_the_plan_say_what_was_used(
    home: Path, tmp_path: Path, prep: Prep
) -> None:
    out = tmp_path / "out"
    planned = prep("clean", "--config", home / "rules.yaml", "--out", out, "--dry-run")
    file_hash = hash_file(home / "my_rules.py")
    assert (
        f'mostly_letters {{"least": 0.6}}: {home / "my_rules.py"}, hash {file_hash}' in planned.out
    )
    assert not out.exists()
    clean(home, out)
    fields = json.loads((out / "manifests/custom_filters.json").read_bytes())["fields"]
    assert fields["settings"] == {
        "mostly_letters": {"batch": False, "file_hash": file_hash, "settings": {"least": 0.6}},
        "no_notice": {"batch": True, "file_hash": file_hash,
                      "settings": {"phrase": "accept all cookies"}},
    }  # fmt: skip


def test_in_a_worker_process(home: Path, tmp_path: Path, prep_process: Callable[..., Any]) -> None:
    """Real processes, which import the file, and a module of the current directory."""
    trees = []
    many = "".join((home / "web.jsonl").read_text() for _ in range(10))
    (home / "web.jsonl").write_text(many)
    for workers in (0, 1):
        out = tmp_path / f"out-{workers}"
        of_module = (
            ("--set", "filters.custom.0.function=my_rules:mostly_letters") if workers else ()
        )
        options = ("--workers", workers, "--set", "read.task_bytes=1024", *of_module)
        words = ("clean", "--config", "rules.yaml", "--out", out, *options)
        ended = prep_process(*words, cwd=home) if workers else command(home, out, *options)
        assert ended.code == 0, ended.err
        assert len(list((out / layout.CLEANED).iterdir())) > 2
        files = [p for p in out.rglob("*") if p.is_file() and p.parts[-1] != ".lock"]
        files = [p for p in files if "journal" not in p.parts]
        trees.append({p.relative_to(out): p.read_bytes() for p in files})
    assert trees[0] == trees[1]


def test_a_changed_file_runs_again_what_depends_on_it(home: Path, tmp_path: Path) -> None:
    out, gopher = tmp_path / "out", "filters.gopher={min_words: 1, min_stop_words: 0}"
    first = clean(home, out, 0, gopher)
    assert len(clean(home, out, 0, gopher).reused) == len(first.stages)
    code = (home / "my_rules.py").read_text()
    (home / "my_rules.py").write_text(f"{code}# another file, the same verdicts\n")
    same = clean(home, out, 0, gopher)
    assert set(first.stages) - set(same.reused) == {"custom_filters"}
    (home / "my_rules.py").write_text(code.replace(">= least", '>= least + ("More" in text)'))
    other = clean(home, out, 0, gopher)
    assert {"clean", "filters"} <= set(other.reused)
    assert not {"custom_filters", "decisions", "keep", "cleaned"} & set(other.reused)
    assert [row["reason"] for row in rows(out / layout.DOCUMENTS)][-1] == LETTERS
    milder = clean(home, out, 0, gopher, "filters.custom.0.settings.least=0.1")
    assert "custom_filters" not in milder.reused


def test_a_change_of_what_a_module_imports_is_not_seen(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "of_mine.py").write_text("LEAST = 0.6\n")
    (home / "rules_with_import.py").write_text(
        "import of_mine\ndef mostly_letters(text, meta, *, least):\n    return of_mine.LEAST < 1\n"
    )
    module = "filters.custom.0.function=rules_with_import:mostly_letters"
    clean(home, tmp_path / "out", 0, module)
    (home / "of_mine.py").write_text("LEAST = 2\n")
    assert "custom_filters" in clean(home, tmp_path / "out", 0, module).reused


def test_elsewhere_it_is_the_same_stage(home: Path, tmp_path: Path) -> None:
    """Where the file is does not count, nor how it is named."""
    out = tmp_path / "out"
    stages = len(clean(home, out).stages)
    moved = home.rename(tmp_path / "moved")
    assert len(clean(moved, out).reused) == stages
    absolute = f"filters.custom.0.function={moved}/my_rules.py:mostly_letters"
    assert len(clean(moved, out, 0, absolute).reused) == stages


def test_files_of_the_command_line(home: Path, tmp_path: Path, prep: Prep) -> None:
    """With FILES the functions are those next to the config; --set names them from here."""
    config, out = home / "rules.yaml", tmp_path / "out"
    ended = prep("clean", home / "web.jsonl", "--config", config, "--out", out, "--workers", 0)
    assert ended.code == 0, ended.err
    assert [row["reason"] for row in rows(out / layout.DOCUMENTS)] == REASONS
    named = (
        "filters.custom=[{function: my_rules.py:no_notice, batch: true, settings: {phrase: ''}}]"
    )
    alone = command(home, tmp_path / "alone", "--set", named, "--min-length", 0)
    assert alone.code == 3
    assert "no document is left" in alone.err, "every text holds no text"


def test_in_a_whole_preparation(home: Path, tmp_path: Path, prep: Prep) -> None:
    """After the filters that are built in, in prep run; evidence only with `report`."""
    texts = [*TEXTS, "Ends with { a bracket 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9"]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (home / "web.jsonl").write_text("".join(lines))
    options = ("--workers", 0, "--set", "filters.c4={min_sentences: 0, min_terminal_lines: 0}",
               "--set", "pack.max_sequence_length=16")  # fmt: skip
    ended = prep("run", home / "rules.yaml", "--out", tmp_path / "run", *options)
    assert ended.code == 0, ended.err
    verify_run(tmp_path / "run")
    reasons = [row["reason"] for row in rows(tmp_path / "run" / layout.DOCUMENTS)]
    assert reasons == [*REASONS, "c4_curly_bracket"]
    assert LETTERS in (tmp_path / "run" / layout.REPORT).read_text()
    last = [e["rule"] for e in rows(tmp_path / "run" / layout.EVIDENCE)][-2:]
    assert last == ["c4_curly_bracket", LETTERS]
    report = ("--set", "filters.action=report", "--out", tmp_path / "reported")
    assert prep("run", home / "rules.yaml", *options, *report).code == 0
    assert {row["state"] for row in rows(tmp_path / "reported" / layout.DOCUMENTS)} == {"kept"}
    assert len(rows(tmp_path / "reported" / layout.EVIDENCE)) == 6


ERRORS = (
    ("return 1 / (len(text) - 14) < 9", r"mostly_letters \(.*my_rules\.py\) failed on "
     r"web/web\.jsonl:2 \(document [0-9a-f]{32}\): .*my_rules\.py:2: ZeroDivisionError: "),
    ("return len(text)", r"returned \d+ \(int\) for web/web\.jsonl:1 "),
    ("least.append(text); return len(least) < 3", r"is no pure function: of web/web\.jsonl:"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message", "workers"),
    [
        *((*error, 0) for error in ERRORS),
        (*ERRORS[0], 1),
        *(pytest.param(*error, 2, marks=pytest.mark.slow) for error in ERRORS[1:]),
    ],
)
def test_errors_of_a_function(
    body: str, message: str, workers: int, home: Path, tmp_path: Path,
    prep_process: Callable[..., Any],
) -> None:  # fmt: skip
    """One line from any process, and no traceback."""
    if "append" in body:
        body = body.replace("least.append", "SEEN.append").replace("len(least)", "len(SEEN)")
    (home / "bad_rules.py").write_text(
        f"def mostly_letters(text, meta, *, least):\n    {body}\n\nSEEN = []\n"
    )
    rule = "filters.custom.0.function=bad_rules:mostly_letters"
    words = ("--config", "rules.yaml", "--out", tmp_path / "out", "--set", rule)
    start = prep_process if workers else prep_in_fork
    ended = start("clean", *words, "--workers", workers, cwd=home)
    assert ended.code == 3
    said = [line for line in ended.err.splitlines() if line.startswith("prep: ")]
    message = message.replace("my_rules", "bad_rules")
    assert len(said) == 1 and re.search(rf"filters\.custom\.0\.function: .*{message}", said[0]), (
        said
    )
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("filters.custom.0.function=my_rulez:mostly_letters",
         r"filters\.custom\.0\.function: my_rulez:mostly_letters: no module my_rulez is on .*; did "
         r"you mean 'my_rules'\? install it, name its directory in PYTHONPATH, or write FILE\.py"),
        ("filters.custom.0.function=my_rules.py:mostly_leters", "did you mean 'mostly_letters'"),
        ("filters.custom.0.settings.leest=1", "did you mean 'least'"),
        ("filters.custom.0.functoin=a:b", "did you mean 'function'"),
        ("filters.custom.0.function=my_rules", "expected MODULE:FUNCTION"),
    ],
)  # fmt: skip
def test_errors_before_anything_is_written(
    override: str, message: str, home: Path, tmp_path: Path
) -> None:
    ended = command(home, tmp_path / "out", "--set", override)
    assert ended.code == 2, ended.err
    assert re.search(message, ended.err), ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_no_custom_filter_leaves_no_trace(home: Path, tmp_path: Path) -> None:
    """Neither a stage nor another fingerprint of those that were there."""
    gopher = "filters.gopher={min_words: 1, min_stop_words: 0}"
    without = clean(home, tmp_path / "a", 0, gopher, "filters.custom=[]")
    assert "custom_filters" not in without.stages
    assert without.stages["filters"].fingerprint == (
        clean(home, tmp_path / "b", 0, gopher).stages["filters"].fingerprint
    )
