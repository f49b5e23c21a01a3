"""Wide dataclasses are kw_only, and no call passes more than six positional arguments."""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "dedup", "trainer", "wafer_backend")
MOST_FIELDS, MOST_ARGUMENTS = 5, 6

CLASSES: dict[str, str] = {}
"""Wide dataclasses that are not kw_only, as module.Class, and why. One with init=False needs no
place here: its own `__init__` is a function as any other."""

CALLS = {
    "pack": "struct takes one argument per letter of the format",
    "__init__": "torch's optimizers, in the order of torch's own signature",
}
"""Calls of others' functions that may pass more, by the last part of the name, and why. Kernels
(`@kernel`) need no place here: numba calls them by position, with flat arrays and scalars. Nor do
functions of ours that take `*arguments`."""


@dataclass(kw_only=True)
class Found:
    """What the packages hold. `classes`: by module and name. `names`: what a module imports, as
    (module, name). `free`: functions by module and name, whether a call may pass them any number
    of arguments. `calls`: long ones, by module."""

    classes: dict[tuple[str, str], ast.ClassDef] = field(default_factory=dict)
    names: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    free: dict[tuple[str, str], bool] = field(default_factory=dict)
    calls: list[tuple[str, ast.Call]] = field(default_factory=list)


@cache
def _read() -> Found:
    found = Found()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and len(node.args) > MOST_ARGUMENTS:
                    found.calls.append((module, node))
                elif isinstance(node, ast.ClassDef):
                    found.classes[module, node.name] = node
                elif isinstance(node, ast.ImportFrom):
                    for name in node.names:
                        found.names[module, name.asname or name.name] = node.module or "", name.name
                elif isinstance(node, ast.FunctionDef):
                    is_kernel = any(_last(d) == "kernel" for d in node.decorator_list)
                    is_free = is_kernel or node.args.vararg is not None
                    # Of two of one name in a module, such as methods, the strict one counts.
                    found.free[module, node.name] = is_free and found.free.get(
                        (module, node.name), True
                    )
    return found


def _last(node: ast.expr) -> str:
    """The last part of a dotted name, or of that of a call's function."""
    node = node.func if isinstance(node, ast.Call) else node
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _place(module: str, node: ast.expr) -> tuple[str, str]:
    """Where a name of a module was defined, as far as imports tell."""
    place = module, _last(node)
    while place in _read().names:
        place = _read().names[place]
    return place


def _settings(node: ast.ClassDef) -> dict[str, Any] | None:
    """What `@dataclass` was given; None for a class that is none."""
    for decorator in node.decorator_list:
        if _last(decorator) == "dataclass":
            given = decorator.keywords if isinstance(decorator, ast.Call) else []
            return {word.arg or "": ast.literal_eval(word.value) for word in given}
    return None


def _fields(place: tuple[str, str]) -> set[str]:
    """Own and inherited fields that the `__init__` of a dataclass takes."""
    node = _read().classes.get(place)
    if node is None or _settings(node) is None:
        return set()
    found = set[str]().union(*(_fields(_place(place[0], base)) for base in node.bases))
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            words = line.value.keywords if isinstance(line.value, ast.Call) else []
            is_out = any(w.arg == "init" and ast.unparse(w.value) == "False" for w in words)
            if not is_out and _last(line.annotation) not in ("ClassVar", "KW_ONLY"):
                found.add(line.target.id)
    return found


def _is_free(module: str, call: ast.Call) -> bool:
    free, place = _read().free, _place(module, call.func)
    if isinstance(call.func, ast.Name):
        return free.get(place, False)
    namesakes = [is_free for (_, name), is_free in free.items() if name == place[1]]
    return bool(namesakes) and all(namesakes)


def test_wide_dataclasses_are_kw_only() -> None:
    wide = set()
    for place, node in _read().classes.items():
        settings = _settings(node)
        is_settled = settings is None or settings.get("kw_only") or settings.get("init") is False
        if not is_settled and len(_fields(place)) > MOST_FIELDS:
            wide.add(".".join(place))
    assert wide == set(CLASSES)


def test_no_call_passes_more_than_six_positional_arguments() -> None:
    long = [(m, call) for m, call in _read().calls if not _is_free(m, call)]
    wrong = [f"{m}:{call.lineno}" for m, call in long if _last(call) not in CALLS]
    assert wrong == []
    assert {_last(call) for _, call in long} == set(CALLS), "an exception that nothing needs"
