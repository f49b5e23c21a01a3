"""What `mkdocs build` does with pages that are written for any reader of Markdown.

The pages link to files outside of docs/ as they are in the repository. In the site the Markdown
files of the repository's top are pages, and every other file that a page links to is a plain text
file below `source/`. The map of modules is generated.
"""

import posixpath
import re
import runpy
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]
TOP_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
}
MODULES = "modules.md"
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```[^\n]*\n.*?^```$)", re.M | re.S)
LIST_AFTER_TEXT = re.compile(r"^((?![-*|#>\s]|\d+\. ).+\n)(?=(?:[-*]|\d+\.) )", re.M)


class Examples(Preprocessor):
    """Puts examples of docstrings (`>>> f(1)` to the next empty line) in fences of code."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines with fences around examples that have none."""
        text, inside, fenced = [], False, False
        for line in [*lines, ""]:
            fenced ^= line.startswith("```")
            if line.startswith(">>> ") and not inside and not fenced:
                text.append("```pycon")
                inside = True
            elif inside and not line.strip():
                text.append("```")
                inside = False
            text.append(line)
        return text


class ExamplesInDocstrings(Extension):
    """`Examples`, before blocks are looked for."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Markdown's
        """Register it."""
        md.preprocessors.register(Examples(md), "examples", 200)


def on_config(config: Any) -> None:
    """Pages and docstrings are read with `Examples`."""
    config.markdown_extensions.append(ExamplesInDocstrings())


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's top, the map of modules, and files that pages link to."""
    texts = {f"docs/{f.src_uri}": f.content_string for f in files.documentation_pages()}
    for name, page in TOP_PAGES.items():
        if files.get_file_from_path(page) is None:
            texts[name] = (REPOSITORY / name).read_text("utf-8")
            files.append(File.generated(config, page, content=texts[name]))
    tour = runpy.run_path(str(Path(__file__).with_name("make_tour.py")))
    tree = tour["tour"]([REPOSITORY / name for name in tour["PACKAGES"]], 100)
    page = f"# Every module\n\nWhat `python docs/make_tour.py` prints.\n\n```text\n{tree}```\n"
    files.append(File.generated(config, MODULES, content=page))
    for target in sorted({t for name, text in texts.items() for t in _linked(name, text)}):
        place, path = _place(target), REPOSITORY / target
        if place.startswith("source/") and path.is_file():
            files.append(File.generated(config, place, content=path.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the site, and the empty line that Markdown of Python needs at lists."""
    here = page.file.src_uri
    name = next((n for n, to in TOP_PAGES.items() if to == here != "index.md"), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        link, anchor = match[2].partition("#")[::2]
        if not link or re.match(r"[a-z]+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
        to = posixpath.relpath(_place(target), posixpath.dirname(here) or ".")
        return match[1] + to + (anchor and f"#{anchor}") + match[3]

    parts = FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else LIST_AFTER_TEXT.sub(r"\1\n", LINK.sub(moved, part))
        for part in parts
    )


def _linked(name: str, text: str) -> Iterator[str]:
    """Paths in the repository of what a document links to."""
    for _, link, _ in LINK.findall(FENCE.sub("", text)):
        path = link.partition("#")[0]
        if path and not re.match(r"[a-z]+:", link):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def _place(target: str) -> str:
    """Where a file of the repository is in the site."""
    if target in TOP_PAGES:
        return TOP_PAGES[target]
    path = PurePosixPath(target)
    inside = path.is_relative_to("docs") and path.suffix != ".py"
    return str(path.relative_to("docs")) if inside else f"source/{target}.txt"
