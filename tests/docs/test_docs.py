"""The documents say what is there: links, commands, versions, generated tables, sizes."""

import contextlib
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

import pipeline
from pipeline.commands import app as prep_cli
from tests.scripts import load

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.M | re.S)
UsageError = typer.BadParameter.__base__
COMMANDS = {"prep", "train", "make", "python", "pip"}


def anchors(text: str) -> set[str]:
    """The anchors of headings, as the usual Markdown hosts make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    plain = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
    return set(plain)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {link}"
        assert target.is_relative_to(REPOSITORY), f"{document.name} links outside: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"no heading for {link}"


def test_named_tests_exist() -> None:
    """`test_name` beside a link to a test file stands in that file."""
    row = re.compile(r"\[`(test_\w+)`\]\(([^)]+\.py)\)")
    named = [
        (document, name, path)
        for document in DOCUMENTS
        for name, path in row.findall(document.read_text(encoding="utf-8"))
    ]
    assert len(named) > 10
    missing = [
        f"{document.name}: {path} has no {name}"
        for document, name, path in named
        if f"def {name}(" not in (document.parent / path).read_text(encoding="utf-8")
    ]
    assert missing == []


def commands(text: str) -> Iterator[list[str]]:
    """Every command in a code block, fenced or indented: what follows a prompt, and lines that
    begin with `prep` or `train` but are no synopsis. Continuation lines are joined, pipes and
    redirections cut off."""
    indented = re.findall(r"^ {4}(.*)$", FENCE.sub("", text), re.M)
    for block in ("\n".join(indented), *FENCE.findall(text)):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ")
            if line.startswith("$ ") or re.match(r"(prep|train) [^\[|]*$", line):
                words = shlex.split(command.partition(" > ")[0], comments=True)
                yield words[: words.index("|")] if "|" in words else words


def readme_commands() -> list[list[str]]:
    return list(commands((REPOSITORY / "README.md").read_text(encoding="utf-8")))


def commands_of(program: str) -> list[tuple[str, list[str]]]:
    """Every command of `program` in any document but the change log, with the document's name."""
    texts = [(d.name, d.read_text("utf-8")) for d in DOCUMENTS if d.name != "CHANGELOG.md"]
    every = [(name, words) for name, text in texts for words in commands(text) if words]
    return [(name, words[1:]) for name, words in every if words[0] == program]


def unparsed(program: str, app: typer.Typer) -> list[str]:
    """What the parser of `program` says of the commands that it does not take; nothing is run."""
    parser, said = typer.main.get_command(app), []
    for document, words in commands_of(program):
        try:
            with contextlib.suppress(typer.Exit):  # an option such as --version
                parse(parser, program, words)
        except UsageError as error:
            said.append(f"{document}: {program} {shlex.join(words)}: {error.format_message()}")
    return said


def parse(command: Any, name: str, words: list[str]) -> None:
    """Raise what the parser of a command, or of the command below it, says of `words`."""
    with command.make_context(name, list(words)) as context:
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if rest:
            below, found, rest = context.command.resolve_command(context, rest)
            parse(found, below, rest)


def test_what_is_a_command() -> None:
    text = (
        "    $ prep run a > log   # why\n    train CSX --data b\n    prep run [OPTIONS]\n    x\n"
        "```sh\n$ prep trace a \\\n  --step 1 | head -20\nprints this\n$ cat b\n```\n"
    )
    assert list(commands(text)) == [
        ["prep", "run", "a"], ["train", "CSX", "--data", "b"],
        ["prep", "trace", "a", "--step", "1"], ["cat", "b"],
    ]  # fmt: skip


def test_readme_commands_are_known() -> None:
    programs = {words[0] for words in readme_commands()}
    assert {"prep", "train", "pip"} <= programs <= COMMANDS


def test_prep_commands_parse() -> None:
    assert len(commands_of("prep")) > 80
    assert unparsed("prep", prep_cli.app) == []


def test_train_commands_parse() -> None:
    from trainer import cli as train_cli

    assert len(commands_of("train")) > 40
    assert unparsed("train", train_cli.app) == []


def test_what_is_not_parsed_is_named() -> None:
    parser = typer.main.get_command(prep_cli.app)
    for words in (["run", "a", "--stepp", "1"], ["dedup", "index", "grow", "idx"], ["runn", "a"]):
        with pytest.raises(UsageError):
            parse(parser, "prep", words)


def test_make_targets_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(
            r"(?:`|^ {4}|^\$ )make ([a-z]+)", document.read_text("utf-8"), re.M
        )
    }
    assert {"demo", "check", "test", "soak"} <= named <= targets


def test_the_demo_is_what_readme_shows() -> None:
    """The commands of `make demo` are in README, in their order."""
    recipe = re.search(
        r"^demo:.*\n((?:\t.*\n)+)", (REPOSITORY / "Makefile").read_text("utf-8"), re.M
    )
    assert recipe is not None
    lines = recipe[1].replace("$(BIN)/", "").splitlines()
    demo = [shlex.split(line.partition(" | ")[0]) for line in lines]
    assert len(demo) == 8
    shown = [words for words in readme_commands() if words in demo]
    assert shown == demo


@pytest.mark.parametrize(("name", "kilobytes"), [("README.md", 8), ("CONTRIBUTING.md", 10)])
def test_the_first_pages_are_short(name: str, kilobytes: int) -> None:
    """What grows beyond belongs on a page of docs/."""
    assert len((REPOSITORY / name).read_bytes()) <= kilobytes * 1024


def test_every_page_is_in_the_index() -> None:
    """README links the index, and the index every page of docs/."""
    index = REPOSITORY / "docs" / "index.md"
    pages = {p.relative_to(index.parent).as_posix() for p in index.parent.rglob("*.md")}
    pages.remove(index.name)
    linked = {link.partition("#")[0] for link in LINK.findall(index.read_text(encoding="utf-8"))}
    assert pages - linked == set(), "add a line to docs/index.md"
    assert "docs/index.md" in LINK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))


def test_one_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([^\]]+)\]", changelog, re.M)
    assert newest is not None
    assert newest[1] == project["version"] == pipeline.__version__


def test_configuration_is_up_to_date() -> None:
    script = load(REPOSITORY / "docs" / "make_configuration.py")
    written = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == script.document(), "run `python docs/make_configuration.py`"


@pytest.mark.parametrize("program", ["prep", "train"])
def test_pages_of_commands_are_up_to_date(program: str) -> None:
    script = load(REPOSITORY / "docs" / "make_commands.py")
    written = (REPOSITORY / "docs" / f"{program}_commands.md").read_text(encoding="utf-8")
    assert written == script.document(program), "run `python docs/make_commands.py`"


def test_tables_of_stages_are_up_to_date() -> None:
    script = load(REPOSITORY / "docs" / "make_stages.py")
    written = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    assert written == script.document(), "run `python docs/make_stages.py`"


def test_the_tables_of_rules_are_up_to_date() -> None:
    script = load(REPOSITORY / "docs" / "make_filter_tables.py")
    written = (REPOSITORY / "docs" / "filters.md").read_text(encoding="utf-8")
    assert written == script.document(), "run `python docs/make_filter_tables.py`"


def test_every_run_file_is_documented() -> None:
    from pipeline.runs.catalogue import PLACES

    text = (REPOSITORY / "docs" / "formats.md").read_text(encoding="utf-8")
    for name in PLACES:
        assert name in text, f"docs/formats.md does not name {name}"


def test_example_of_preparation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(REPOSITORY / "examples" / "prepare_and_trace.py").main(tmp_path)
    printed = capsys.readouterr().out
    assert "duplicates: 1\n" in printed
    assert "sums/sums.jsonl:" in printed


def test_example_of_the_backend(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(REPOSITORY / "examples" / "own_module.py"), run_name="__main__")
    assert "equal bits: True" in capsys.readouterr().out
