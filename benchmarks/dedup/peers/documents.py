"""What the peers' scripts share: reading JSON lines, clusters, and the result they print."""

import argparse
import json
from collections.abc import Iterator


def read(files: list[str]) -> Iterator[tuple[str, str]]:
    """Identifier and text of every record of plain JSON-lines files."""
    for name in files:
        with open(name, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                yield record["id"], record["text"]


def count_lines(files: list[str]) -> int:
    """Records of JSON-lines files."""
    total = 0
    for name in files:
        with open(name, "rb") as file:
            total += sum(1 for _ in file)
    return total


class Clusters:
    """Union-find over rows; the smallest row of a component stands for it."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find(self, row: int) -> int:
        while (parent := self._parents.get(row, row)) != row:
            self._parents[row] = self._parents.get(parent, parent)
            row = parent
        return row

    def unite(self, first: int, second: int) -> None:
        low, high = sorted((self.find(first), self.find(second)))
        if low != high:
            self._parents[high] = low

    def representatives(self) -> dict[int, int]:
        """Row -> the row that stands for it, for every row that goes."""
        return {row: self.find(row) for row in list(self._parents)}


def write_result(
    options: argparse.Namespace,
    representatives: dict[int, int],
    settings: dict[str, object],
    versions: dict[str, str],
) -> None:
    """Write the kept documents in a second pass over the files, and print the summary."""
    options.out.mkdir(parents=True, exist_ok=True)
    identifiers: list[str] = []
    kept = 0
    with open(options.out / "kept.jsonl", "w", encoding="utf-8") as file:
        for row, (identifier, text) in enumerate(read(options.files)):
            identifiers.append(identifier)
            if row not in representatives:
                file.write(json.dumps({"id": identifier, "text": text}, ensure_ascii=False) + "\n")
                kept += 1
    if options.explain:
        named = [(identifiers[row], identifiers[stays]) for row, stays in representatives.items()]
        write_dropped(options, named)
    print_summary(len(identifiers), kept, settings, versions)


def write_dropped(options: argparse.Namespace, dropped: list[tuple[str, str | None]]) -> None:
    """`dropped.jsonl`: [id, id of the document it was dropped for, or null], one a line."""
    with open(options.out / "dropped.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in dropped)


def print_summary(
    documents: int, kept: int, settings: dict[str, object], versions: dict[str, str]
) -> None:
    """The last line of standard output: what the asking script reads."""
    print(
        json.dumps(
            {"documents": documents, "kept": kept, "settings": settings, "versions": versions}
        )
    )
