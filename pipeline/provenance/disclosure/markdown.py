"""Markdown pages from templates: text from data passes the guards of Markdown and HTML.

Control, format and other invisible characters are spelled out; what Markdown or HTML would read as
markup is escaped; a line break is a space, so that no text leaves its table cell or list item.
"""

import functools
import re
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from pipeline.core.errors import escape_text
from pipeline.report.page import report_environment

__all__ = ["escape_markdown", "markdown_page"]

_PACKAGE = "pipeline.provenance.disclosure.templates"
_MARKUP = re.compile(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w)|^[-+=#](?!\d))")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
_SCHEME = re.compile(r"(?i)\b(ftp|mailto|javascript|data|file):(?=\S)")
_BLANK = re.compile(r"\n{3,}")
_LIMIT = 20_000  # characters of one text


def markdown_page(template: str, **values: Any) -> bytes:
    """The page that a template makes of `values`, in UTF-8; `text | md` guards a text from data."""
    text = _environment().get_template(template).render(values)
    return _BLANK.sub("\n\n", text).encode()


def escape_markdown(text: str) -> str:
    r"""A text as Markdown that shows it as it is; addresses of the web stay links.

    >>> print(escape_markdown("a|b <script> *x* some_name"))
    a\|b &lt;script&gt; \*x\* some_name
    """
    joined = " ".join(text.split())
    shown = escape_text(joined, _LIMIT)
    escaped = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", escaped))
    return _SCHEME.sub(r"\1&#58;", marked)


@functools.cache
def _environment() -> Environment:
    def template(name: str) -> str:
        return resources.files(_PACKAGE).joinpath(name).read_text("utf-8")

    environment = Environment(
        autoescape=False,
        loader=FunctionLoader(template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    shared = report_environment().filters
    environment.filters |= {
        name: shared[name] for name in ("n", "short", "size", "share", "counted")
    }
    environment.filters["md"] = escape_markdown
    return environment
