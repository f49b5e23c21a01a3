"""Every command on every page is run, or its block says why not.

The everyday test runs what takes seconds; `python -m pytest -m slow tests/docs` runs the rest.
"""

import shutil
from pathlib import Path

import pytest

from tests.docs.page_commands import Block, Page, read_page, run_commands, simple_commands

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [
    read_page(path)
    for path in sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
    if path.name != "CHANGELOG.md"
]
EVERY_DAY = [p for p in PAGES if any(b.is_run and not b.slow for b in p.blocks)]
SLOW = [p for p in PAGES if any(b.is_run and b.slow for b in p.blocks)]


def name(page: Page) -> str:
    return page.path.relative_to(REPOSITORY).as_posix()


def run_page(page: Page, directory: Path, slow: bool) -> None:
    for block in page.blocks:
        if block.is_run and (slow or not block.slow):
            try:
                run_commands(block.commands, directory)
            except AssertionError as error:
                raise AssertionError(f"{page.path}, line {block.line}: {error}") from None


@pytest.fixture(scope="module")
def states() -> dict[Path, Path]:
    """Directories that pages left and others start from, filled as they are needed."""
    return {}


def start(page: Page, directory: Path, states: dict[Path, Path], make: Path) -> None:
    """Put into `directory` what the page before it left."""
    if page.after is None:
        return
    if page.after not in states:
        before = read_page(page.after)
        place = make / page.after.stem
        place.mkdir()
        start(before, place, states, make)
        run_page(before, place, slow=False)
        states[page.after] = place
    shutil.copytree(states[page.after], directory, dirs_exist_ok=True, symlinks=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize("page", EVERY_DAY, ids=name)
def test_a_page_runs(page: Page, tmp_path: Path, states: dict[Path, Path], kept: Path) -> None:
    start(page, tmp_path, states, kept)
    run_page(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", SLOW, ids=name)
def test_a_slow_page_runs(page: Page, tmp_path: Path, states: dict[Path, Path], kept: Path) -> None:
    start(page, tmp_path, states, kept)
    run_page(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_is_run_or_says_why_not(page: Page) -> None:
    neither = [block for block in page.blocks if not block.is_run and len(block.not_run) < 8]
    assert [f"line {block.line}: {block.code[:60]}" for block in neither] == [], (
        "make it a ```bash block that runs, or put <!-- not run: why --> in front of it"
    )


def test_what_is_a_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n<!-- after: b.md -->\n\n```bash\nprep a\n```\n\n"
        "<!-- slow -->\n```bash\ntrain b\n```\n\n"
        "<!-- not run: needs a cluster -->\n\n    prep c\n\n    prep d\n\n"
        "<!-- not run: for another block -->\ntext\n\n```\n$ prep e\nprinted\n```\n"
        "<!-- before:\nmkdir f\n-->\n```yaml\nname: g\n```\n"
    )
    found = read_page(page)
    assert found.after == tmp_path / "b.md"
    assert found.blocks[3].commands == "prep e\n"
    assert [(b.line, b.language, b.code, b.not_run, b.slow, b.is_run) for b in found.blocks] == [
        (4, "bash", "prep a\n", "", False, True),
        (9, "bash", "train b\n", "", True, True),
        (15, "indented", "prep c\n\nprep d\n", "needs a cluster", False, False),
        (22, "", "$ prep e\nprinted\n", "", False, True),
        (26, "before", "mkdir f\n", "", False, True),
    ]


def test_what_is_a_command(tmp_path: Path) -> None:
    code = "a \\\n  b\n\n# why\ncat > c <<'END'\nd\n\nEND\ne\n"
    assert list(simple_commands(code)) == ["a \\\n  b", "cat > c <<'END'\nd\n\nEND", "e"]
    run_commands("mkdir a\ncat > a/b <<'END'\nc\nEND\ntest -s a/b", tmp_path)
    with pytest.raises(AssertionError, match=r"false\nended with 1"):
        run_commands("false\n", tmp_path)
    with pytest.raises(AssertionError, match="No such option"):
        run_commands("prep run --no-such-option", tmp_path)


def test_a_block_that_is_run() -> None:
    assert Block(line=1, language="bash", code="a\n").is_run
    assert not Block(line=1, language="bash", code="a\n", not_run="a cluster").is_run
    assert not Block(line=1, language="sh", code="a\n").is_run
    assert Block(line=1, language="sh", code="$ a\n").is_run
