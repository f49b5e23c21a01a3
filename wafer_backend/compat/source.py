"""One Python file of a checkout by its syntax tree: what its names are bound to, which of them the
API lacks, and which modules it imports."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wafer_backend.compat.resolution import (
    Found,
    Instance,
    Missing,
    find_attribute,
    find_imported,
    find_module,
    find_result,
    find_wrong_arguments,
)

NAMESPACES = ("cerebras.pytorch", "cerebras_pytorch", "cerebras.appliance", "cerebras_appliance")


@dataclass(frozen=True)
class MissingName:
    """A name or an argument that is missing here, where the file uses it.

    `at_import`: the line runs when the file is imported, and nothing catches the error.
    """

    line: int
    name: str
    at_import: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Import:
    """`import module` or `from module import name`, bound to a local name.

    `level`: leading dots. `name` is None for the module itself.
    """

    line: int
    module: str
    level: int
    name: str | None
    local: str
    at_import: bool


@dataclass
class SourceFile:
    """A file that was parsed; `path` is relative to the checkout."""

    path: Path
    tree: ast.Module
    imports: list[Import] = field(default_factory=list)
    is_program: bool = False


def read_source(path: Path, checkout: Path) -> SourceFile:
    """Parse a file. Raises SyntaxError or ValueError for one that is no Python of today."""
    source = SourceFile(path.relative_to(checkout), ast.parse(path.read_bytes()))
    for node, at_import in walk(source.tree):
        source.imports += _imports(node, at_import)
        source.is_program |= isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    return source


def is_of_api(module: str) -> bool:
    """Whether a module is of the packages that this one stands in for."""
    return any(module == name or module.startswith(name + ".") for name in NAMESPACES)


def walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs, uncaught, when the file is imported or run."""
    yield from _Walk(tree).nodes(tree, True)


class _Walk:
    """Functions that the file calls itself at once, such as `main()`, run when it does."""

    def __init__(self, tree: ast.Module) -> None:
        self._lazy_annotations = any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
        )
        self._called: set[str] = set()
        before = None
        while before != self._called:
            before = set(self._called)
            self._called |= {
                node.func.id
                for node, runs in self.nodes(tree, True)
                if runs and isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }

    def nodes(self, node: ast.AST, runs: bool) -> Iterator[tuple[ast.AST, bool]]:
        """A node and all inside it, each with whether it runs."""
        yield node, runs
        for name, value in ast.iter_fields(node):
            part_runs = runs and not self._is_deferred(node, name)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.nodes(child, part_runs)

    def _is_deferred(self, node: ast.AST, part: str) -> bool:
        """Whether a part of a node runs later, is never run, or may fail."""
        if part in ("annotation", "returns"):
            return self._lazy_annotations
        if part != "body":
            return False
        if isinstance(node, ast.If):
            return "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.Try):
            return any(_catches_imports(handler) for handler in node.handlers)
        if isinstance(node, ast.FunctionDef):
            return node.name not in self._called
        return isinstance(node, ast.AsyncFunctionDef | ast.Lambda)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    caught = "" if handler.type is None else ast.unparse(handler.type)
    names = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
    return not caught or any(name in caught for name in names)


def _imports(node: ast.AST, at_import: bool) -> Iterator[Import]:
    def make(module: str, level: int, name: str | None, local: str) -> Import:
        return Import(
            line=getattr(node, "lineno", 0),
            module=module,
            level=level,
            name=name,
            local=local,
            at_import=at_import,
        )

    if isinstance(node, ast.Import):
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            module = alias.name if alias.asname else local
            yield make(module, 0, None, local)
            if not alias.asname and module != alias.name:
                yield make(alias.name, 0, None, "")
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            local = alias.asname or alias.name
            yield make(node.module or "", node.level, alias.name, local)


class SourceCheck:
    """Finds what a file uses of the API and what of it is missing.

    `names`: local name -> dotted name of the API, or "cerebras" for the package around it.
    """

    def __init__(self, source: SourceFile, names: Mapping[str, str]) -> None:
        self._source = source
        self._names = names
        self._variables: dict[str, Found] = {}
        self._variables = self._infer_variables()

    def find_missing(self) -> list[MissingName]:
        """All that is missing, in order of lines, each once per line."""
        found = dict.fromkeys(self._findings())
        return sorted(found, key=lambda finding: (finding.line, finding.name))

    def _findings(self) -> Iterator[MissingName]:
        for one in self._source.imports:
            missing = self._missing_import(one)
            if missing is not None:
                yield MissingName(one.line, _dotted(one), one.at_import, missing.reason)
        covered: set[int] = set()
        for node, at_import in walk(self._source.tree):
            if isinstance(node, ast.Attribute) and id(node) not in covered:
                covered.update(map(id, _chain(node)))
                yield from self._attribute(node, at_import)
            elif isinstance(node, ast.Call):
                yield from self._arguments(node, at_import)

    def _missing_import(self, one: Import) -> Missing | None:
        if one.level or not is_of_api(one.module):
            return None
        found: Found = find_module(one.module)
        if one.name not in (None, "*") and not isinstance(found, Missing):
            found = find_imported(one.module, one.name)
        return found if isinstance(found, Missing) else None

    def _attribute(self, node: ast.Attribute, at_import: bool) -> Iterator[MissingName]:
        """The first attribute of a chain that is missing, named with the whole chain."""
        found, label = self._find(node)
        if isinstance(found, Missing) and label and not self._is_missing_import(node):
            yield MissingName(node.lineno, label, at_import, found.reason)

    def _is_missing_import(self, node: ast.expr) -> bool:
        """Whether the chain starts at an import of this file, which is reported already."""
        while isinstance(node, ast.Attribute):
            node = node.value
        imported = {one.local for one in self._source.imports if is_of_api(one.module)}
        return (
            isinstance(node, ast.Name)
            and node.id in imported
            and isinstance(self._name(node.id)[0], Missing)
        )

    def _arguments(self, node: ast.Call, at_import: bool) -> Iterator[MissingName]:
        function, label = self._find(node.func)
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        positional = None if starred else len(node.args)
        keywords = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
        for wrong in find_wrong_arguments(function, positional, keywords):
            yield MissingName(node.lineno, f"{label}({wrong})", at_import)

    def _find(self, node: ast.expr) -> tuple[Found, str]:
        """What an expression is, and its dotted name."""
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute):
            known = self._variables.get(ast.unparse(node))
            if known is not None:
                return known, _label(known)
            owner, label = self._find(node.value)
            if isinstance(owner, Missing):
                return owner, f"{label}.{node.attr}"
            if label == "cerebras":
                return find_module(f"{label}.{node.attr}"), f"{label}.{node.attr}"
            return find_attribute(owner, node.attr), f"{label}.{node.attr}"
        if isinstance(node, ast.Call):
            result = find_result(self._find(node.func)[0])
            return result, _label(result)
        return None, ""

    def _name(self, name: str) -> tuple[Found, str]:
        if name in self._names:
            path = self._names[name]
            if path == "cerebras":
                return None, path
            module = find_module(path)
            if not isinstance(module, Missing):
                return module, path
            parent, _, last = path.rpartition(".")
            return find_imported(parent, last), path
        known = self._variables.get(name)
        return known, _label(known)

    def _infer_variables(self) -> dict[str, Found]:
        """Variables, as `name` or `self.name`, that are only ever given objects of one class."""
        variables: dict[str, Found] = {}
        dropped = {
            argument.arg
            for argument in ast.walk(self._source.tree)
            if isinstance(argument, ast.arg)
        }
        for node in ast.walk(self._source.tree):
            if not isinstance(
                node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.With
            ):
                continue
            for target, value in _assigned(node):
                text = ast.unparse(target)
                found = self._find(value)[0] if value is not None else None
                instance = found if isinstance(found, Instance) else None
                if instance is None or variables.setdefault(text, instance) != instance:
                    dropped.add(text)
        return {name: found for name, found in variables.items() if name not in dropped}


def _chain(node: ast.Attribute) -> Iterator[ast.expr]:
    """The attributes that an attribute is of, up to a name or a call."""
    value = node.value
    while isinstance(value, ast.Attribute):
        yield value
        value = value.value


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets of a statement, with the value of each where it is one expression."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.For):
        yield node.target, None
    elif isinstance(node, ast.With):
        for item in node.items:
            if item.optional_vars is not None:
                yield item.optional_vars, None


def _dotted(one: Import) -> str:
    return one.module if one.name in (None, "*") else f"{one.module}.{one.name}"


def _label(found: Found) -> str:
    return found.kind.__name__ if isinstance(found, Instance) else ""
