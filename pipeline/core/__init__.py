"""The kernel: everything that writes, identifies, orders or accounts for data. Imports nothing of
ours. Public names of packages are imported at their first use, since that takes long.
"""

from collections.abc import Callable, Mapping, Sequence
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
