"""Commands whose docstring is their manual: help, a line for every parameter, then examples.

    RUN: an argument, by the name that the help gives it
    --msl N: an option, and what stands for its value; `--seed:` for the name of its type
    --plan, --text/--no-text: switches, the second with its opposite

    Backwards:
    --step N: an option that the help lists under this heading

    Examples:
    prep repack runs/pile --out runs/pile-8k

An indented line continues the one before it. Types, defaults and limits are those of the signature;
a parameter that is declared there in full (`pipeline.commands.options`) needs no line. What several
commands have in common can be in the manual of their group.

A command is imported when it is called (`LazyCommands`), so that each starts as fast as what it
needs.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cache
from importlib import import_module
from textwrap import dedent
from typing import Annotated, Any, cast, get_args

import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

_OPTION = re.compile(r"(--[\w-]+(?:/--[\w-]+)?)(?: (\S+?))?: (.+)")
_ARGUMENT = re.compile(r"([A-Z][A-Z|.]*): (.+)")
_PANEL = re.compile(r"([A-Z][a-z]+):")
_EXAMPLE = re.compile(r"Example: (.+)")

Command = Callable[..., None]


def commands(
    *functions: Command, manual: str = "", **settings: Any
) -> Callable[[typer.Typer], None]:
    """What adds these commands to an app. `manual` has options in common; `settings` are those of
    `typer.Typer.command`."""

    def register(app: typer.Typer) -> None:
        for function in functions:
            _add(app, function, manual, **settings)

    return register


def make_group(manual: str, *functions: Command) -> typer.Typer:
    """A group of commands with its help and examples."""
    text, _, epilog = _read(manual)
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode="markdown", help=text, epilog=epilog or None
    )
    for function in functions:
        _add(group, function, manual)
    return group


def group(name: str, manual: str, *functions: Command) -> Callable[[typer.Typer], None]:
    """What adds this group of commands to an app."""

    def register(app: typer.Typer) -> None:
        app.add_typer(make_group(manual, *functions), name=name)

    return register


def _add(app: typer.Typer, function: Command, manual: str, **settings: Any) -> None:
    """Add a command, named as its function; one that cannot do without parameters shows its help
    when it is given none."""
    text, epilog, needs_some = declare(function, manual)
    settings = {"no_args_is_help": needs_some, **settings}
    name = function.__name__.rstrip("_").replace("_", "-")
    app.command(name, help=text, epilog=epilog, **settings)(function)


def read_docstring(function: Callable[..., Any]) -> str:
    """The docstring of a function; out of its file where Python keeps none (`python -OO`)."""
    if function.__doc__ is not None:
        return function.__doc__
    tree = ast.parse(dedent(inspect.getsource(function)))
    return ast.get_docstring(cast(ast.FunctionDef, tree.body[0])) or ""


@cache
def declare(function: Command, shared: str = "") -> tuple[str, str, bool]:
    """Complete the annotations of a function by its docstring, and by the options that it shares
    with others; returns its help and examples, and whether a parameter has no default."""
    text, manual, epilog = _read(read_docstring(function))
    parameters = inspect.signature(function).parameters
    waiting = {
        name.rstrip("_").replace("_", "-"): name
        for name, parameter in parameters.items()
        if not getattr(_info(parameter.annotation), "help", None)
    }
    own = [line for line in manual if line[0]]
    documented = {_long_name(line) for line in own}
    common = [line for line in _read(shared)[1] if _long_name(line) in {*waiting} - documented]
    for line in (*own, *common):
        names, metavar, words, panel = line
        option = typer.Option(names, metavar=metavar, help=words, rich_help_panel=panel)
        _annotate(function, waiting.pop(_long_name(line)), option)
    arguments = (line for line in manual if not line[0])
    for name, (_, metavar, words, _) in zip(waiting.values(), arguments, strict=True):
        _annotate(function, name, typer.Argument(metavar=metavar, help=words))
    return text, epilog, any(p.default is p.empty for p in parameters.values())


def _long_name(line: "Line") -> str:
    return line[0].split("/")[0].removeprefix("--").replace("_", "-")


def _info(annotation: Any) -> ParameterInfo | None:
    infos = (part for part in get_args(annotation) if isinstance(part, ParameterInfo))
    return next(infos, None)


def _annotate(function: Command, name: str, info: ParameterInfo) -> None:
    """Set what the manual says, over limits and the like that the annotation has already."""
    annotation = function.__annotations__[name]
    declared = _info(annotation)
    marks: list[Any] = []
    if declared is not None:
        manual, info = info, copy(declared)
        for field in ("default", "param_decls", "metavar", "help", "rich_help_panel"):
            setattr(info, field, getattr(manual, field))
        annotation, *marks = (part for part in get_args(annotation) if part is not declared)
    function.__annotations__[name] = Annotated[(annotation, info, *marks)]


Line = tuple[str, str | None, str, str | None]
"""Names of an option (none: an argument), metavar, help and panel."""


def _read(docstring: str) -> tuple[str, list[Line], str]:
    """The help, the parameters and the examples of a manual."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if line.startswith(" "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    end = next((n for n, line in enumerate(lines) if line.startswith("Example")), len(lines))
    text: list[str] = []
    manual: list[Line] = []
    panel = None
    for line in lines[:end]:
        if match := _OPTION.fullmatch(line):
            manual.append((match[1], match[2], match[3], panel))
        elif match := _ARGUMENT.fullmatch(line):
            manual.append(("", match[1], match[2], None))
        elif match := _PANEL.fullmatch(line):
            panel = match[1]
        elif not manual:
            text.append(line)
    epilog = [_EXAMPLE.sub(r"Example: `\1`", line) for line in lines[end:] if line]
    epilog = [f"`{line}`" if line.startswith("prep ") else line for line in epilog]
    return "\n".join(text).strip(), manual, "\n\n".join(epilog)


Table = Mapping[str, tuple[str, str]]
"""Command -> the module with the `register(app)` that adds it, and the first paragraph of its
help."""


class LazyCommands(Mapping[str, Any]):
    """Name -> command, each imported when it is looked up.

    `own` commands are there already. Those of `table` are added to an app from `new_app`, which
    `prepare` gets before they are built; within `listing`, they have only their names and helps.
    """

    _is_listing = False

    def __init__(
        self,
        table: Table,
        new_app: Callable[[], typer.Typer],
        prepare: Callable[[typer.Typer], None],
        own: Mapping[str, Any],
    ) -> None:
        self._table, self._new_app, self._prepare, self._own = table, new_app, prepare, own

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        module, text = self._table[name]
        if self._is_listing:
            return TyperCommand(name, help=text)
        app = self._new_app()
        app.callback()(_do_nothing)
        import_module(module).register(app)
        self._prepare(app)
        group: Any = typer.main.get_command(app)
        return group.commands[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._table

    def __len__(self) -> int:
        return len(self._own) + len(self._table)

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Import no command within the block."""
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def _do_nothing() -> None: ...
