"""The documents say what is there: links, commands, versions, generated tables, the file tree."""

import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import pipeline
from pipeline import cli as prep_cli
from tests.scripts import load

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.M | re.S)
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


def readme_commands() -> Iterator[list[str]]:
    """Every command in a code block of the README, continuation lines joined."""
    for block in FENCE.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if "$ " in line[:2] else []
            if words:
                yield words


def test_readme_commands_are_known() -> None:
    commands = list(readme_commands())
    assert {"prep", "train", "make"} <= {words[0] for words in commands}
    assert {words[0] for words in commands} <= COMMANDS


def test_prep_commands_parse() -> None:
    """Typer's parser takes each one; nothing is run."""
    parser = typer.main.get_command(prep_cli.app)
    for words in readme_commands():
        if words[0] == "prep":
            with parser.make_context("prep", words[1:]) as context:
                name, command, rest = parser.resolve_command(context, words[1:])
                command.make_context(name, rest, parent=context)


def test_train_commands_parse() -> None:
    from trainer import cli as train_cli

    parser = typer.main.get_command(train_cli.app)
    for words in readme_commands():
        if words[0] == "train":
            parser.make_context("train", words[1:])


def test_make_targets_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    for words in readme_commands():
        if words[0] == "make":
            assert set(words[1:]) <= targets


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


def tour() -> set[str]:
    """Paths in the file tree of CONTRIBUTING.md."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = FENCE.findall(text.partition("## Codebase tour")[2])[0]
    paths, parents = set(), [""]
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        path = "".join(parents[: depth + 1]) + name
        parents = [*parents[: depth + 1], name]
        paths.add(path)
    return paths


def test_tour_names_what_is_there() -> None:
    named = tour()
    missing = [path for path in sorted(named) if not (REPOSITORY / path).exists()]
    assert missing == []
    for package in ("pipeline", "dedup", "wafer_backend", "trainer"):
        modules = (REPOSITORY / package).rglob("*.py")
        relative = {p.relative_to(REPOSITORY).as_posix() for p in modules}
        unnamed = {p for p in relative if not p.endswith("__init__.py")} - named
        assert unnamed == set(), "add a line to the codebase tour in CONTRIBUTING.md"


def test_every_run_file_is_documented() -> None:
    from pipeline import layout

    text = (REPOSITORY / "docs" / "formats.md").read_text(encoding="utf-8")
    for name in (*layout.OWNED_DIRECTORIES, *layout.OWNED_FILES):
        assert name in text, f"docs/formats.md does not name {name}"


def test_example_of_preparation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(REPOSITORY / "examples" / "prepare_and_trace.py").main(tmp_path)
    printed = capsys.readouterr().out
    assert "duplicates: 1\n" in printed
    assert "sums/sums.jsonl:" in printed


def test_example_of_the_backend(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(REPOSITORY / "examples" / "own_module.py"), run_name="__main__")
    assert "equal bits: True" in capsys.readouterr().out
