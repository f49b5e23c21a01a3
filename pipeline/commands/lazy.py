"""Commands that are imported when they are called, so that each starts as fast as what it needs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

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
