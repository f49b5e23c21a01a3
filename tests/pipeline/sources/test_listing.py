"""What a path names on this machine: links, loops, plain text, names that are not UTF-8."""

import os
import random
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.sources import files

LINE = b'{"text": "words"}\n'


def found(path: Path) -> list[str]:
    return [file.path for file in files.find("in", str(path), Path())[0]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An input with a file, a link to a directory elsewhere and one back to the input."""
    for name in ("in/a.jsonl", "in/sub/b.jsonl", "elsewhere/c.jsonl", "elsewhere/deep/d.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LINE)
    (tmp_path / "in/link").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/back").symlink_to("../in")
    return tmp_path / "in"


def test_a_linked_directory_is_read_once(tree: Path) -> None:
    assert found(tree) == ["a.jsonl", "link/c.jsonl", "link/deep/d.jsonl", "sub/b.jsonl"]
    (tree / "again").symlink_to("sub")
    assert found(tree) == ["a.jsonl", "link/c.jsonl", "link/deep/d.jsonl", "sub/b.jsonl"]


def test_a_glob_does_not_go_round(tree: Path) -> None:
    assert found(tree / "**/*.jsonl") == [
        "a.jsonl", "link/c.jsonl", "link/deep/d.jsonl", "sub/b.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_any_tangle_of_links_reads_every_file_once(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    directories = [tmp_path / f"d{i}" for i in range(8)]
    for number, directory in enumerate(directories):
        directory.mkdir()
        (directory / f"{number}.jsonl").write_bytes(LINE)
    for number in range(24):
        target = drawn.choice(directories)
        (drawn.choice(directories) / f"l{number}").symlink_to(f"../{target.name}")
    start = drawn.choice(directories)
    read = [os.path.realpath(start / name) for name in found(start)]
    reachable, waiting = set(), [start]
    while waiting:
        directory = waiting.pop()
        if directory not in reachable:
            reachable.add(directory)
            waiting += [p.resolve() for p in directory.iterdir() if p.is_dir()]
    assert sorted(read) == sorted(str(d / f"{d.name[1:]}.jsonl") for d in reachable)


def test_a_link_that_leads_nowhere_is_named(tree: Path) -> None:
    (tree / "gone.jsonl").symlink_to("nothing")
    for path in (tree, tree / "*.jsonl", tree / "gone.jsonl"):
        with pytest.raises(InputError, match=r"gone\.jsonl: a link that leads nowhere"):
            found(path)


def test_a_directory_of_plain_text_is_read(tmp_path: Path) -> None:
    for name in ("one.txt", "sub/two.txt.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"words")
    assert found(tmp_path) == ["one.txt", "sub/two.txt.gz"]
    (tmp_path / "a.jsonl").write_bytes(LINE)
    assert found(tmp_path) == ["a.jsonl"]  # beside data a .txt is more likely a README


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    for name in (b"a\xff.jsonl", b"b\xfe.jsonl", b"cover\xff.png"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(LINE)
    with pytest.raises(InputError) as error:
        found(tmp_path)
    assert str(error.value).splitlines() == [
        rf"{tmp_path}/a\xff.jsonl: a file name that is not UTF-8; rename it",
        rf"{tmp_path}/b\xfe.jsonl: a file name that is not UTF-8; rename it",
    ]


def test_a_directory_that_cannot_be_listed_is_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match="sub: cannot list: Permission denied"):
        found(tree)
