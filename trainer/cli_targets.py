"""How `train` tells a training run from a sub-command: every line that does not name one is a run.

`train CSX --params …` and `train --params …` are runs, `train jobs …` is not, and `train --help` is
the help of a run. As with Model Zoo, an option that takes several values takes them in one go:
`--mount_dirs a b`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperGroup

COMPLETION = ("--install-completion", "--show-completion")
SEVERAL = ("--job_labels", "--mount_dirs", "--python_paths")


class Targets(TyperGroup):
    """A group whose command `RUN` needs no name."""

    RUN = "run"

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the group when `args` name a sub-command, else that of the run."""
        completing = extra.get("resilient_parsing") and not args
        known = {*self.commands, *COMPLETION} - {self.RUN}
        if completing or (args and args[0] in known):
            return super().make_context(info_name, args, parent, **extra)
        words = list(one_value_each(args))
        return self.commands[self.RUN].make_context(info_name, words, parent, **extra)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What the first word can be: sub-commands, and targets or options of a run."""
        run = self.commands[self.RUN]
        own = [item for item in super().shell_complete(ctx, incomplete) if item.value != self.RUN]
        with run.make_context(self.RUN, [], ctx, resilient_parsing=True) as of_run:
            target = next(p for p in run.params if p.param_type_name == "argument")
            return (
                own
                + run.shell_complete(of_run, incomplete)
                + target.shell_complete(of_run, incomplete)
            )

    def invoke(self, ctx: Any) -> Any:
        """Call what `make_context` chose."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def one_value_each(words: Sequence[str]) -> Iterator[str]:
    """The words, with an option of `SEVERAL` repeated before each of its values.

    >>> list(one_value_each(["CSX", "--mount_dirs", "a", "b", "-o", "out"]))
    ['CSX', '--mount_dirs', 'a', '--mount_dirs', 'b', '-o', 'out']
    """
    option, value_follows = "", False
    for word in words:
        if word.startswith("-"):
            option, value_follows = word if word in SEVERAL else "", True
        elif option and not value_follows:
            yield option
        else:
            value_follows = False
        yield word
