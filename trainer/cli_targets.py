"""How `train` tells a training run from a sub-command: every line that does not name one is a run.

`train CSX --params …` and `train --params …` are runs, `train jobs …` is not, and `train --help` is
the help of a run.
"""

from typing import Any

from typer.core import TyperGroup


class Targets(TyperGroup):
    """A group whose command `RUN` needs no name."""

    RUN = "run"

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the group when `args` name a sub-command, else that of the run."""
        if args and args[0] in self.commands and args[0] != self.RUN:
            return super().make_context(info_name, args, parent, **extra)
        return self.commands[self.RUN].make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Call what `make_context` chose."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)
