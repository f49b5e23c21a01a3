"""Commands and functions open run directories in buckets. Any other URL in the place of a path is
refused at once, with one line and exit 2."""

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import pipeline.commands
import trainer.commands
from pipeline.commands import app as cli
from pipeline.config.prep import Config
from pipeline.config.sections import InputConfig
from pipeline.core import journal, storage
from pipeline.core.errors import ConfigError
from pipeline.core.places import BUCKETS, check_local
from trainer import cli as train
from trainer.cli import app as train_app

URLS = ("s3://bucket/out", "gs://b", "https://host/out?secret=1", "file:///tmp/out")
CHOICES = {"--decision": "drop", "--tgt-fmt": "hf", "--to": "wandb"}
SAID = "a URL; expected a path on this machine"
IN_BUCKETS = {
    ("run", "out"), ("plan", "out"), ("status", "directory"), ("verify", "directory"),
    ("clean-up", "directory"), ("log", "directory"), ("clean", "out"), ("convert", "out"),
    ("dedup", "out"),
    ("disclose", "directory"), ("explain", "directory"), ("policy", "run"), ("screen", "out"),
    ("takedown", "export"),
    ("export", "directory"), ("export", "out"), ("inspect", "directory"), ("policy", "directory"),
    ("quarantine", "directory"), ("repack", "directory"), ("repack", "out"),
    ("push", "directory"), ("rescan", "directory"), ("search", "directory"), ("takedown", "run"),
    ("tokenizer", "directory"), ("trace", "directory"),
}  # fmt: skip
"""Command or group of `prep`, and parameter."""
INDEX_IN_BUCKETS = {("build", "index"), ("add", "index"), ("query", "index")}
TRAIN_IN_BUCKETS = {("run", "data"), ("evaluate", "data")}


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


def annotation(parameter: Any) -> str:
    """What a parameter is declared as; typer has kept it in two places."""
    kept = getattr(parameter, "type_descriptor", None)
    return str(kept.annotation if kept else parameter.type)


def is_path(parameter: Any) -> bool:
    return "path" in annotation(parameter).lower()


def words_of(parameter: Any, value: str) -> list[str]:
    option = parameter.opts[-1]
    return [option, value] if option.startswith("-") else [value]


def line(command: Any, target: Any) -> list[str]:
    """A command line with all that is required, and a URL for the target."""
    words = []
    for parameter in sorted(command.params, key=lambda p: p.opts[-1].startswith("-")):
        if parameter is target:
            words += words_of(parameter, "s3://bucket/out")
        elif parameter.required:
            number = any(kind in annotation(parameter) for kind in ("int", "float"))
            value = CHOICES.get(parameter.opts[-1], "1" if number else "x")
            words += words_of(parameter, value)
    return words


INDEX = get_command(importlib.import_module("pipeline.commands.dedup").index_app)
ALL_CASES = [
    (app, (*words, *line(command, parameter)), (*words[:1], parameter.name))
    for app, root in (
        ("prep", get_command(cli.app)),
        ("prep dedup index", INDEX),
        ("train", get_command(train_app)),
    )
    for words, command in commands(root)
    for parameter in command.params
    if is_path(parameter)
]  # fmt: skip
OPEN = {
    "prep": IN_BUCKETS, "prep dedup index": INDEX_IN_BUCKETS, "train": TRAIN_IN_BUCKETS,
}  # fmt: skip
CASES = [(app, words) for app, words, where in ALL_CASES if where not in OPEN[app]]
OPENED = [
    (*app.split()[1:], *words)
    for app, words, where in ALL_CASES
    if app != "train" and where in OPEN[app]
]


def test_there_are_all_the_commands() -> None:
    """An app that no other one holds would be forgotten here as well as in the commands."""
    index = importlib.import_module("pipeline.commands.dedup").index_app
    apps = {
        id(value)
        for package in (pipeline.commands, trainer.commands)
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, typer.Typer)
    }
    known, waiting = {id(cli.app)}, [train_app, index]
    for name in {module for table in (cli, train) for module, _ in table.COMMANDS.values()}:
        waiting.append(typer.Typer())
        importlib.import_module(name).register(waiting[-1])
    while waiting:
        app: Any = waiting.pop()
        known.add(id(app))
        waiting += [group.typer_instance for group in app.registered_groups]
    assert apps <= known
    outputs = [
        words for _, words, _ in ALL_CASES if {"--out", "--model_dir", "-o", "--plot"} & set(words)
    ]
    assert len(ALL_CASES) > 80 and len(outputs) > 15


def test_every_output_is_declared_as_a_path() -> None:
    named = ("out", "model_dir", "write", "plot", "into")
    for root in (get_command(cli.app), INDEX, get_command(train_app)):
        for words, command in commands(root):
            for parameter in command.params:
                if parameter.name in named and "bool" not in annotation(parameter):
                    assert is_path(parameter), (words, parameter.name)


@pytest.mark.parametrize(("app", "words"), CASES, ids=[" ".join((a, *w)) for a, w in CASES])
def test_a_url_is_refused(
    app: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if app == "train":
        unnamed = () if words[0] == "data_preprocess" else ("run",)
        with pytest.raises(SystemExit) as end:
            train_app(args=[word for word in words if word not in unnamed])
        code = end.value.code
    else:
        arguments = [*app.split()[1:], *words]
        code = cli.run_app(functools.partial(cli.app, args=arguments), "prep")
    error = capsys.readouterr().err
    assert code == 2, error
    assert SAID in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", OPENED, ids=[" ".join(words) for words in OPENED])
def test_a_directory_in_a_bucket_is_opened(words: tuple[str, ...], capsys: Any) -> None:
    """A bucket without a directory is refused by what would open it, without a network."""
    arguments = [word.replace("s3://bucket/out", "s3://bucket") for word in words]
    code = cli.run_app(functools.partial(cli.app, args=arguments), "prep")
    assert code == 2
    assert "s3://bucket: expected s3://BUCKET/DIRECTORY" in capsys.readouterr().err


@pytest.mark.parametrize("url", URLS)
def test_functions_refuse_it_before_they_write(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_prose: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(write_prose(1))
    config = Config(name="x", inputs=(InputConfig(name="a", path="a.txt"),))
    in_bucket = url.startswith(tuple(f"{scheme}:" for scheme in BUCKETS))
    for call in (
        lambda place: pipeline.run(config, out=place, workers=0),
        lambda place: pipeline.plan(config, out=place),
        lambda place: pipeline.clean("a.txt", out=place),
        lambda place: pipeline.dedup("a.txt", out=place),
        lambda place: pipeline.open_run(place),
        lambda place: pipeline.verify(place),
        lambda place: pipeline.search(place, "a word"),
        lambda place: pipeline.trace(place, document="abcdef"),
    ):
        said = "expected [sg].*://BUCKET/DIRECTORY" if in_bucket else SAID
        with pytest.raises(ConfigError, match=said) as refused:
            call(url.removesuffix("/out") if in_bucket else url)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match=SAID):
        storage.publish(Path(url) / "file", b"")
    with pytest.raises(ConfigError, match=SAID), journal.hold_lock(Path(url)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_names_that_are_not_utf8(tmp_path: Path, capsys: Any) -> None:
    out = f"{tmp_path}/o\udcff"
    code = cli.run_app(functools.partial(cli.app, args=["run", "quickstart", "--out", out]), "prep")
    assert (code, capsys.readouterr().err) == (
        2, f"prep: {tmp_path}/o\\xff: the name is not UTF-8; choose another one\n",
    )  # fmt: skip


def test_paths_with_a_colon_are_paths() -> None:
    for name in ("a:b", "./12:30/x", "/data/s3:/x", "C"):
        check_local(Path(name))
