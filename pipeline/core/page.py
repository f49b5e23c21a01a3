"""HTML pages that need no script and no network, and show text from data as it is.

Every value passes two guards on its way into a page: control, format and other invisible characters
are spelled out (`\\x1b`, `\\u202e`), then the text is HTML-escaped.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["is_hidden", "page_environment", "spell_hidden", "spell_out"]

_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}  # Unicode categories that do not show


def page_environment(
    packages: Sequence[str], filters: Mapping[str, Callable[..., Any]]
) -> "Environment":
    """Where pages are made: a template of the first of `packages` that has one of its name, with
    `filters` and both guards."""
    from importlib.metadata import version

    from jinja2 import BytecodeCache, Environment, FunctionLoader, StrictUndefined
    from jinja2.bccache import Bucket

    from dedup.user_cache import keep_cached, read_cached

    class Compiled(BytecodeCache):
        """Templates are compiled once for each version of themselves, of Python, Jinja and this
        package."""

        _folder = f"templates/{version('jinja2')}-{version('wafermill')}"

        def load_bytecode(self, bucket: Bucket) -> None:
            if (content := read_cached(self._folder, bucket.key)) is not None:
                bucket.bytecode_from_string(content)

        def dump_bytecode(self, bucket: Bucket) -> None:
            keep_cached(bucket.bytecode_to_string(), self._folder, bucket.key)

    def template(name: str) -> str:
        files = [resources.files(package).joinpath(name) for package in packages]
        return next((file for file in files if file.is_file()), files[-1]).read_text("utf-8")

    environment = Environment(
        autoescape=True,
        bytecode_cache=Compiled(),
        finalize=spell_hidden,
        loader=FunctionLoader(template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= filters
    return environment


def is_hidden(character: str) -> bool:
    """Whether a character does not show.

    >>> is_hidden("\\u202e"), is_hidden("\\n"), is_hidden(" ")
    (True, True, False)
    """
    return unicodedata.category(character) in _HIDDEN


def spell_out(character: str) -> str:
    """A character that does not show as its escape.

    >>> print(spell_out("\\u202e"))
    \\u202e
    """
    return character.encode("unicode_escape").decode()


def spell_hidden(value: Any) -> Any:
    """Spell out the hidden characters of a string; other values and markup stay as they are."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(spell_out(c) if is_hidden(c) else c for c in value)
