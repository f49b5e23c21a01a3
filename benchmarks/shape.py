"""The shape of the source tree: sizes of files, rooms and the imports between them, names that
occur twice. Nothing of it is imported; only the text is read.

    python benchmarks/shape.py [ROOT]
"""

import ast
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGES = ("pipeline", "dedup", "trainer", "wafer_backend")
FULL_FOLDER = 25


class Tree:
    """The modules of the four packages below `root`, by dotted name.

    Attributes: lines, number of lines by module; imports, the modules each module imports, with
    those that it imports inside functions in `late`; names, the public classes and functions that
    each module defines.
    """

    def __init__(self, root: Path) -> None:
        self.files = {
            _dotted(path.relative_to(root)): path
            for package in PACKAGES
            for path in sorted((root / package).rglob("*.py"))
        }
        self.lines: dict[str, int] = {}
        self.fmt_skips = 0
        self.imports: dict[str, set[str]] = {}
        self.late: dict[str, set[str]] = {}
        self.names: dict[str, set[str]] = {}
        for module, path in self.files.items():
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            self.lines[module] = text.count("\n")
            self.fmt_skips += text.count("# fmt: skip")
            at_top = set(self._targets(module, path, tree.body))
            everywhere = set(self._targets(module, path, ast.walk(tree)))
            self.imports[module], self.late[module] = everywhere, everywhere - at_top
            self.names[module] = {
                node.name
                for node in tree.body
                if isinstance(node, ast.ClassDef | ast.FunctionDef)
                and not node.name.startswith("_")
            }

    def _targets(self, module: str, path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.If):
                yield from self._targets(module, path, [*node.body, *node.orelse])
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.files)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(module, path, node)
                for alias in node.names:
                    if f"{base}.{alias.name}" in self.files:
                        yield f"{base}.{alias.name}"
                    elif base in self.files:
                        yield base

    def _base(self, module: str, path: Path, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        keep = len(parts) - node.level + (path.name == "__init__.py")
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def seen_from_above(tree: Tree, package: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The direct children of a package, and (importing child, imported child)."""

    def room(module: str) -> str | None:
        parts = module.split(".")
        return parts[1] if parts[0] == package and len(parts) > 1 else None

    rooms = {child for module in tree.files if (child := room(module))}
    arrows = {
        (begin, end)
        for module, targets in tree.imports.items()
        for target in targets
        if (begin := room(module)) and (end := room(target)) and begin != end
    }
    return rooms, arrows


def circles(arrows: set[tuple[str, str]]) -> list[set[str]]:
    """Groups of rooms that reach one another."""
    after: dict[str, set[str]] = defaultdict(set)
    for begin, end in arrows:
        after[begin].add(end)

    def reached(begin: str) -> set[str]:
        seen, front = set(), [begin]
        while front:
            new = after[front.pop()] - seen
            seen |= new
            front += new
        return seen

    reach = {room: reached(room) for room in {room for arrow in arrows for room in arrow}}
    groups = {
        frozenset(other for other in reach[room] if room in reach[other])
        for room in reach
        if room in reach[room]
    }
    return [set(group) for group in groups]


def arrows_up(root: Path, tree: Tree, package: str) -> int | None:
    """Imports from a lower layer into a higher one, by the `layers` contract of pyproject.toml;
    None where it has none for this package."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in settings["contracts"]:
        if contract["type"] == "layers" and contract.get("containers") == [package]:
            height = {
                room.strip(" ()"): -number
                for number, layer in enumerate(contract["layers"])
                for room in layer.replace("|", ":").split(":")
            }
            _, arrows = seen_from_above(tree, package)
            return sum(height.get(b, 0) < height.get(e, 0) for b, e in arrows)
    return None


def main(root: Path) -> None:
    tree = Tree(root)
    modules = {name: count for name, count in tree.lines.items() if count}
    sizes = list(modules.values())
    importers = Counter(target for targets in tree.imports.values() for target in targets)
    inner = [name for name in tree.files if tree.files[name].name != "__init__.py"]
    folders = Counter(path.parent for path in tree.files.values() if path.stat().st_size)
    names = Counter(name for found in tree.names.values() for name in found)
    repeated = sorted(name for name, count in names.items() if count > 1)
    full = {str(d.relative_to(root)): n for d, n in folders.items() if n > FULL_FOLDER}
    print(f"product files                     {len(tree.files):,}")
    print(f"lines                             {sum(sizes):,}")
    print(f"lines per file, median            {statistics.median(sizes):.0f}")
    print(f"folders of over {FULL_FOLDER} Python files     {len(full)}  {full or ''}")
    alone = sum(importers[name] == 1 for name in inner)
    print(f"modules with one importer         {alone / len(inner):.0%}  ({alone:,})")
    print(f"public names in two modules       {len(repeated)}")
    print(f"# fmt: skip                       {tree.fmt_skips}")
    print(f"imports inside functions          {sum(map(len, tree.late.values()))}")
    for package in PACKAGES:
        rooms, arrows = seen_from_above(tree, package)
        up, rings = arrows_up(root, tree, package), circles(arrows)
        print(
            f"{package + '/':14} rooms {len(rooms):3}  arrows {len(arrows):3}  up "
            f"{'-' if up is None else up}  circles {len(rings)}"
        )
    if "--names" in sys.argv:
        print(*repeated)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    main(Path(given[0]) if given else Path(__file__).resolve().parents[1])
