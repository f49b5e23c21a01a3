"""Lists of invented works, and the group `prep registry` as the command line runs it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.commands import registry as cli_registry
from pipeline.commands.app import run_app
from pipeline.screening.registry.importing import ImportOptions, ImportResult, import_works

LIST = """\
title,author,isbn,registration_number,year,publisher,claimant
The Tin Orchard: a novel,"Marsh, Ida",9780306406157,TX 3-111-222,1992,Quarry Press,Ida Marsh
"Salt; or, The Long Way",Otto Bell,,TX0003111333,1994,,
Harbour Songs,Una Reed,,,1901,,
"""

RECORDS = """\
Type of Work:      Text
Registration Number / Date:
                   TX0003111222 / 1992-08-05
Title:             The tin orchard : a
                   novel / Ida Marsh.
Imprint:           Leeds : Quarry Press, c1992.
Description:       172 p.
Copyright Claimant:
                   Ida Marsh
Date of Creation:  1991
Date of Publication:
                   1992-05-01
Names:             Marsh, Ida, 1954-

Type of Work:      Text
Registration Number / Date: TX 4-000-111 / 1996-01-03
Title: Quiet machines / Una Reed ; illustrated by Otto Bell.
Copyright Claimant: Una Reed
Date of Creation: 1995
ISBN: 0-306-40615-2
"""


@pytest.fixture
def works_csv(tmp_path: Path) -> Path:
    path = tmp_path / "works.csv"
    path.write_text(LIST, "utf-8")
    return path


@pytest.fixture
def records_txt(tmp_path: Path) -> Path:
    path = tmp_path / "exhibit.txt"
    path.write_text(RECORDS, "utf-8")
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file with this name and text."""

    def call(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return call


@pytest.fixture
def bring() -> Callable[..., ImportResult]:
    """Import files into a directory; keywords are `ImportOptions`."""

    def call(directory: Path, *files: Path, **settings: Any) -> ImportResult:
        return import_works(files, directory, ImportOptions(**settings))

    return call


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def registry(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """`prep registry …` inside this process."""
    app = typer.Typer()
    app.callback()(lambda: None)
    cli_registry.register(app)

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["prep", "registry", *map(str, arguments)])
        capsys.readouterr()
        code = run_app(app, "prep")
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call
