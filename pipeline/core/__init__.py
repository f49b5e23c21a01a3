"""The kernel: everything that writes, identifies, orders or accounts for data. Imports nothing of
ours. Public names of packages are imported at their first use, since that takes long.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any


def export_lazily(
    package: str, names: Sequence[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose public names are `names`.

    homes: module, relative to the package -> names in it, separated by blanks, that are imported at
        their first use; a module without names is such a name itself.
    """
    modules = {name: module for module, inside in homes.items() for name in inside.split()}
    modules |= {module.removeprefix("."): module for module, inside in homes.items() if not inside}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name], package)
        return getattr(module, name) if homes[modules[name]] else module

    return get, lambda: sorted(names)


def collect_rarely() -> None:
    """From now on Python looks for cycles less often. Imports make many objects that stay, tasks
    many that hardly ever form a cycle: the search takes a seventh of a start's time."""
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """`collect_rarely` within the block, in a process that is not ours."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)


_COLLECTED_AFTER = 300_000
"""Objects that are made before Python looks for cycles among them; a small run makes fewer."""
