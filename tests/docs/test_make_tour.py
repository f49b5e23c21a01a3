"""docs/make_tour.py prints every module with a sentence."""

from pathlib import Path

import pytest

from tests.scripts import load

REPOSITORY = Path(__file__).resolve().parents[2]
TOUR = load(REPOSITORY / "docs" / "make_tour.py")


def test_every_module_says_what_it_is_for() -> None:
    """The docstrings are the map: the tour names each module and has a sentence for it."""
    for package in TOUR.PACKAGES:
        rows = list(TOUR.entries(REPOSITORY / package, package))
        modules = [name.strip() for name, _ in rows if name.endswith(".py")]
        there = [p.name for p in (REPOSITORY / package).rglob("*.py") if p.name != "__init__.py"]
        assert sorted(modules) == sorted(there)
        assert [name for name, sentence in rows if not sentence] == []


def test_the_tree(tmp_path: Path) -> None:
    files = {
        "__init__.py": '"""Two  rooms\n    and a hall. More."""',
        "b.py": '"""Rules of Rae et al. 2021, e.g. lengths.\n\nLimits: none."""',
        "a/__init__.py": '"""Is this a room? It is."""',
        "a/deep.py": "x = 1",
        "lists/origins.yaml": "",
        "_hidden/c.py": '"""Not shown."""',
    }
    for name, text in files.items():
        (tmp_path / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / name).write_text(text)
    assert list(TOUR.entries(tmp_path / "house", "house")) == [
        ("house/", "Two rooms and a hall."),
        ("  b.py", "Rules of Rae et al. 2021, e.g. lengths."),
        ("  a/", "Is this a room?"),
        ("    deep.py", ""),
    ]


def test_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a/", "One of two."), ("  long_name.py", "It has more words than fit in one line."),
            ("  " + "x" * TOUR.WIDEST_NAME, "Two."), ("  bare.py", "")]  # fmt: skip
    monkeypatch.setattr(TOUR, "entries", lambda folder, name: rows)
    column = " " * (TOUR.WIDEST_NAME + 2)
    assert TOUR.tour([REPOSITORY], 30).splitlines() == [
        "a/".ljust(len(column)) + "One of two.",
        "  long_name.py".ljust(len(column)) + "It has more words than fit in",
        column + "one line.",
        "  " + "x" * TOUR.WIDEST_NAME,
        column + "Two.",
        "  bare.py",
    ]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert TOUR.main([str(REPOSITORY / "pipeline" / "tokenizers")]) == 0
    first, *below = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "pipeline/tokenizers/"
    assert {line.split()[0] for line in below} >= {"engines.py", "training.py"}
    assert len({len(line) - len(line.split(maxsplit=1)[1]) for line in [first, *below]}) == 1
    for arguments, code, said in (["--help"], 0, "FOLDER"), (["nowhere"], 2, "not a folder"):
        with pytest.raises(SystemExit) as ended:
            TOUR.main(arguments)
        assert ended.value.code == code
        captured = capsys.readouterr()
        assert said in captured.out + captured.err
