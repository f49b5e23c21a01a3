"""What is imported at its first use only, since it takes long: public names of packages, pandas."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
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


@contextmanager
def hide_package(name: str) -> Iterator[None]:
    """Within the block a package that was not imported yet cannot be."""

    def refuse(wanted: str, *_: Any) -> None:
        if wanted == name:
            raise ModuleNotFoundError(f"{name} is not needed here")

    finder: Any = SimpleNamespace(find_spec=refuse)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
