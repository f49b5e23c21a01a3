"""`prep registry`: what it prints, its JSON, its exit codes."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pipeline.commands import registry as cli_registry

Run = Callable[..., Any]
REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture
def claims(registry: Run, works_csv: Path, records_txt: Path, tmp_path: Path) -> Path:
    ended = registry("import", works_csv, records_txt, "--into", tmp_path / "claims")
    assert ended.code == 0, ended.err
    return tmp_path / "claims"


def test_help_shows_examples(registry: Run) -> None:
    assert "registries of works" in registry("--help").out
    for command in ("import", "list", "show", "set", "sketch"):
        shown = registry(command, "--help")
        assert shown.code == 0 and f"prep registry {command}" in shown.out


def test_examples_parse() -> None:
    """Every example of the help is a command that the parser takes."""
    app = typer.Typer()
    app.callback()(lambda: None)
    cli_registry.register(app)
    group: Any = typer.main.get_command(app)
    commands = group.commands["registry"].commands
    examples = [
        shlex.split(example)[2:]
        for command in commands.values()
        for example in re.findall(r"`(prep registry [^`]+)`", command.epilog)
    ]
    assert len(examples) >= 10
    for name, *rest in examples:
        commands[name].make_context(name, rest)


def test_import_says_what_it_did(registry: Run, works_csv: Path, tmp_path: Path) -> None:
    works_csv.write_text(works_csv.read_text() + ",Nobody,,,,,\nShort\nTin,Ida,0306406153,,,,\n")
    into = tmp_path / "claims"
    ended = registry("import", works_csv, "--into", into)
    assert ended.code == 0, ended.err
    for line in (
        "refused: works.csv:5: no title", "refused: works.csv:6: expected 7 columns",
        "note: works.csv:7: '0306406153': neither an ISBN",
        "4 lines: 4 works added, 0 changed, 0 unchanged; 2 lines refused, 0 conflicts, 1 note",
        f"registry: {into}/  (claims, version 1, 4 works)",
    ):  # fmt: skip
        assert line in ended.out
    again = registry("import", works_csv, "--into", into, "--json")
    value = json.loads(again.out)
    assert (value["unchanged"], value["fresh"], value["version"]) == (4, False, 1)
    assert {r["where"] for r in value["refusals"]} == {"works.csv:5", "works.csv:6"}


def test_a_few_refused_lines_or_all(registry: Run, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("title,author\nSalt,Bell\n" + ",Nobody\n" * 9)
    some = registry("import", tmp_path / "list.csv", "--into", tmp_path / "a", "--dry-run")
    assert some.out.count("refused: list.csv:") == 5
    assert "refused: and 4 more; --list-refused prints them all" in some.out
    every = registry("import", tmp_path / "list.csv", "--into", tmp_path / "a", "--list-refused")
    assert every.out.count("refused: list.csv:") == 9


def test_list(registry: Run, claims: Path) -> None:
    ended = registry("list", claims)
    assert ended.code == 0 and "claims v1: 4 works" in ended.out
    assert "The Tin Orchard: a novel" in ended.out and "TX0003111222" in ended.out
    found = json.loads(registry("list", claims, "--search", "REED harbour", "--json").out)
    assert found["registry"] == "claims v1"
    assert [work["title_norm"] for work in found["works"]] == ["harbour songs"]
    assert set(found["works"][0]) > {"work_id", "reg_no", "isbn13", "status", "legal_hold"}
    assert "claims v1: 0 of 4 works" in registry("list", claims, "--status", "licensed").out
    first = registry("list", claims, "--limit", 2).out
    assert "claims v1: 4 works; the first 2 (--limit 0: all)" in first
    assert json.loads(registry("list", claims, "--status", "licensed", "--json").out)["works"] == []


@pytest.mark.parametrize(
    "asked",
    ["TX 3-111-222", "tx0003111222", "978-0-306-40615-7", "0306406152", "The Tin Orchard",
     "tin orchard, the", "The tin orchard : a novel", "The Tin Orchard: A Memoir"],
)  # fmt: skip
def test_show_by_what_one_knows(registry: Run, claims: Path, asked: str) -> None:
    (work,) = json.loads(registry("show", claims, asked, "--json").out)["works"]
    assert work["reg_no"] == "TX0003111222"
    assert [change["version"] for change in work["history"]] == [1]
    same = json.loads(registry("show", claims, work["work_id"], "--json").out)["works"]
    assert same == [work]
    assert json.loads(registry("show", claims, work["work_id"][:8], "--json").out)["works"] == same


def test_show_prints_every_field(registry: Run, claims: Path) -> None:
    shown = registry("show", claims, "TX0003111222").out
    for part in ("title      The Tin Orchard: a novel", "authors    Marsh, Ida",
                 "status     asserted",
                 "registered TX0003111222 1992-08-05", "ISBN       9780306406157",
                 "version 1: import works.csv sha256:", "claims v1: 1 of 4 works"):  # fmt: skip
        assert part in shown


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("The Tin Orchid", "did you mean 'The Tin Orchard"), ("harbor song", "'Harbour Songs'"),
     ("Qqqq", ""), ("TX 9-999-999", ""), ("\x1b[31m", "")],
)  # fmt: skip
def test_show_what_is_not_there(registry: Run, claims: Path, asked: str, hint: str) -> None:
    ended = registry("show", claims, asked)
    assert ended.code == 3 and "no work" in ended.err and hint in ended.err
    assert "\x1b" not in ended.err and ("did you mean" in ended.err) == bool(hint)


def test_set_makes_a_version(registry: Run, claims: Path) -> None:
    ended = registry("set", claims, "TX0003111222", "--status", "licensed", "--legal-hold",
                     "--effective-from", "2026-03-01")  # fmt: skip
    assert ended.code == 0, ended.err
    assert "status: asserted -> licensed" in ended.out and "legal_hold: no -> yes" in ended.out
    assert "version 2" in ended.out
    again = registry("set", claims, "TX0003111222", "--status", "licensed", "--json")
    assert json.loads(again.out) == {"work_id": again_id(again), "version": 2, "changes": {}}
    assert "nothing changed" in registry("set", claims, "TX0003111222", "--legal-hold").out
    (work,) = json.loads(registry("show", claims, "TX0003111222", "--json").out)["works"]
    assert (work["status"], work["legal_hold"], work["effective_from"]) == (
        "licensed", True, "2026-03-01",
    )  # fmt: skip
    assert [change["version"] for change in work["history"]] == [1, 2]
    assert "status: asserted -> licensed" in work["history"][1]["text"]
    lifted = registry("set", claims, "TX0003111222", "--no-legal-hold")
    assert "legal_hold: yes -> no" in lifted.out and "version 3" in lifted.out


def again_id(ended: Any) -> str:
    return str(json.loads(ended.out)["work_id"])


def test_an_import_does_not_undo_what_was_set(registry: Run, claims: Path, works_csv: Path) -> None:
    registry("set", claims, "TX0003111222", "--status", "licensed")
    ended = registry("import", works_csv, "--into", claims)
    assert "still version 2" in ended.out
    asserted = registry("import", works_csv, "--into", claims, "--status", "asserted")
    assert (
        "status of work" in asserted.out and "kept 'licensed', ignored 'asserted'" in asserted.out
    )
    assert "still version 2" in asserted.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["import", "DIR/works.csv", "--into", "DIR/x", "--format", "cvs"],
            2,
            "did you mean 'csv'?",
        ),
        (["import", "DIR/works.csv", "--into", "DIR/x", "--status", "assert"], 3, "'asserted'"),
        (["import", "DIR/gone.csv", "--into", "DIR/x"], 3, "gone.csv: cannot read"),
        (["import", "DIR/works.csv", "--into", "DIR"], 2, "not empty and not a registry"),
        (
            ["import", "DIR/works.csv", "--into", "DIR/x", "--texts", "DIR/no"],
            3,
            "no such directory",
        ),
        (["list", "DIR"], 3, "no registry of works here"),
        (["list", "DIR/claims", "--status", "licenced"], 2, "did you mean 'licensed'?"),
        (["set", "DIR/claims", "TX0003111222"], 2, "nothing to set"),
        (["set", "DIR/claims", "TX0003111222", "--status", "x"], 2, "expected one of asserted"),
        (["set", "DIR/claims", "TX0003111222", "--effective-to", "x"], 2, "expected a date"),
        (["set", "DIR/claims", "Nothing", "--legal-hold"], 3, "no work 'Nothing'"),
        (["sketch", "DIR/gone.txt", "--out", "DIR/a.arrow", "--title", "T"], 3, "cannot read"),
        (["sketch", "DIR/works.csv", "--out", "DIR/a", "--title", "T"], 2, "ends in .arrow"),
    ],
)
def test_mistakes(
    registry: Run, claims: Path, arguments: list[str], code: int, message: str
) -> None:
    ended = registry(*(a.replace("DIR", str(claims.parent)) for a in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err and "Traceback" not in ended.err


def test_set_needs_one_work(registry: Run, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("title,author\nSalt,Otto Bell\nSalt,Una Reed\n")
    registry("import", tmp_path / "list.csv", "--into", tmp_path / "claims")
    ended = registry("set", tmp_path / "claims", "Salt", "--legal-hold")
    assert ended.code == 3 and "'Salt' means 2 works" in ended.err
    assert (
        len(json.loads(registry("show", tmp_path / "claims", "Salt", "--json").out)["works"]) == 2
    )


def test_sketch_to_registry(registry: Run, tmp_path: Path) -> None:
    words = " ".join(f"word{number * 7919 % 5003}" for number in range(3000))
    (tmp_path / "book.txt").write_text(words)
    (tmp_path / "salt").write_bytes(bytes(range(32)))
    out = tmp_path / "book.arrow"
    describe = ("--title", "Salt: a tale", "--author", "Bell, Otto", "--author", "Una Reed",
                "--registration", "TX 3-111-333", "--salt-file", tmp_path / "salt")  # fmt: skip
    ended = registry("sketch", tmp_path / "book.txt", "--out", out, *describe)
    assert ended.code == 0, ended.err
    assert "salted: send the salt separately" in ended.out and f"outputs: {out}" in ended.out
    bare = registry("sketch", tmp_path / "book.txt", "--out", out, *describe[:-2], "--json")
    value = json.loads(bare.out)
    assert value["salted"] is False and "without a salt" in value["warnings"][0]
    brought = registry("import", out, "--into", tmp_path / "claims")
    assert "references: 0 texts, 1 sketch kept" in brought.out
    (work,) = json.loads(registry("show", tmp_path / "claims", "Salt", "--json").out)["works"]
    assert (work["authors"], work["reg_no"]) == (["Bell, Otto", "Una Reed"], "TX0003111333")


def test_text_from_lists_cannot_write_markup_or_escapes(registry: Run, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("title,author\n[red]Salt[/red],Otto [link=x]Bell\n")
    registry("import", tmp_path / "list.csv", "--into", tmp_path / "claims")
    for command in (("list",), ("show", "[red]Salt[/red]")):
        name, *rest = command
        shown = registry(name, tmp_path / "claims", *rest).out
        assert "[red]Salt[/red]" in shown and "Otto [link=x]Bell" in shown


@pytest.mark.shared_data
def test_the_reference_registry(registry: Run, shared_data: Path, tmp_path: Path) -> None:
    """396 lines; four books stand there twice, under two spellings of their author."""
    listed = shared_data / "books3_like/registry.csv"
    value = json.loads(registry("import", listed, "--into", tmp_path / "r", "--json").out)
    assert (value["lines"], value["works"]) == (396, 392)
    assert not value["refusals"] and not value["conflicts"] and not value["remarks"]
    again = json.loads(registry("import", listed, "--into", tmp_path / "r", "--json").out)
    assert not again["fresh"] and again["unchanged"] == 392
    for asked in ("TX 3-372-564", "Negrophobia", "4e84733077f6"):
        (work,) = json.loads(registry("show", tmp_path / "r", asked, "--json").out)["works"]
        assert work["subtitle"] == "an urban parable: a novel"
    both = json.loads(registry("list", tmp_path / "r", "--search", "darius james", "--json").out)
    assert {work["reg_no"] for work in both["works"]} == {"TX0003372564", "TX0004193939"}


def test_the_manual_shows_what_is_printed(
    registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first example of docs/registry.md, line by line."""
    monkeypatch.chdir(tmp_path)
    manual = (REPOSITORY / "docs/registry.md").read_text("utf-8")
    commands = manual.split("```")[1].strip().removeprefix("$ ").split("\n$ ")
    name, listed = commands[0].split("\n", 1)
    Path(name.removeprefix("cat ")).write_text(listed + "\n")
    for command in commands[1:]:
        line, printed = command.split("\n", 1)
        ended = registry(*shlex.split(line)[2:])
        assert ended.code == 0, ended.err
        assert ended.out.strip() == printed.strip()
