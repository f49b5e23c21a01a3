"""Speed and error of MinHash signatures: ours and the peers', one core, equal text and shingles.

    python -m benchmarks.dedup.signatures FILES... [--peer-python PYTHON ...] [--json FILE]

FILES are JSON lines (`.jsonl` or `.jsonl.zst`) with `text`. 128 permutations everywhere; shingles
of 13 characters and of 5 words of the same normalised text. datatrove and text-dedup know words
only, and normalise and split their own way: speed, but no error.

Speed: process CPU seconds from texts to finished sketches, pinned to one core, the median of
`--rounds` rounds in which all implementations take turns. MB are 10^6 bytes of UTF-8. A slow
implementation gets a shorter prefix of the same shuffled texts; `affine32 / it`, `fss / it` and
`exact / it` (SHA-1 and legacy permutations: slimpajama_exact) are ratios of rates on exactly its
own texts. Rows with "given hashes" are kernels alone: their input was hashed outside the clock.

Error: root mean square of estimate minus exact Jaccard over 500 pairs that are spread evenly over
[0.5, 1), with four seeds; the theory for 128 independent cells is sqrt(mean J(1 - J) / 128).
datasketch's `update` and `update_batch` make the same signature, which is checked, so the slow one
has no error of its own.
"""

import argparse
import json
import math
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.corpus import prefix, shuffled_texts
from benchmarks.common.measuring import Peer, find_peers, machine
from benchmarks.dedup.pairs import similar_pairs
from benchmarks.dedup.peer_processes import PACKAGES, Signing

UNITS = ("char13", "word5")
SEEDS = (1, 2, 3, 4)
PAIRS = 500
OURS = ("wafermill:affine32/poly64", "wafermill:fss/poly64", "wafermill:legacy/sha1")


@dataclass(frozen=True)
class Implementation:
    """One way to make signatures; `name` is what `peers/signing.py` knows it by."""

    name: str
    label: str
    megabytes: float
    """Text that it signs in one round."""
    units: tuple[str, ...] = UNITS
    own_shingles: bool = False
    """Normalises and splits its own way: no exact similarity to compare with."""

    @property
    def package(self) -> str:
        return self.name.partition(":")[0]


IMPLEMENTATIONS = (
    Implementation("wafermill:affine32/poly64", "affine32", 20),
    Implementation("wafermill:affine32/poly64/list", "affine32, from a list of str", 20),
    Implementation("wafermill:fss/poly64", "fss", 20),
    Implementation("wafermill:affine64/poly64_full", "affine64", 20),
    Implementation("wafermill:legacy/poly64", "legacy", 20),
    Implementation("wafermill:legacy/sha1", "legacy, sha1 (slimpajama_exact)", 5),
    Implementation("datasketch:legacy/sha1/update", "update, sha1, legacy (SlimPajama)", 0.4),
    Implementation("datasketch:affine32/sha1/update", "update, sha1, affine32", 0.4),
    Implementation("datasketch:legacy/sha1/update_batch", "update_batch, sha1, legacy", 2),
    Implementation("datasketch:affine32/sha1/update_batch", "update_batch, sha1, affine32", 2),
    Implementation("datasketch:affine32/xxh32/update_batch", "update_batch, xxh32, affine32", 2),
    Implementation("rensa:strings", "R-MinHash from strings", 5),
    Implementation("rensa:hashes", "R-MinHash, given hashes", 5),
    Implementation("datatrove:", "MinhashDedupSignature, 16 x 8", 1, ("word5",), True),
    Implementation("text-dedup:", "embed_func, xxh3", 2, ("word5",), True),
)


@dataclass
class Row:
    """Figures of one implementation and unit."""

    implementation: str
    label: str
    unit: str
    megabytes: float
    mb_per_s: float = 0.0
    ours_over_it: dict[str, float] = field(default_factory=dict)
    rmse: float | None = None
    bias: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Entrant:
    """An implementation and the interpreter that has it."""

    implementation: Implementation
    label: str
    python: str


def main() -> None:
    options = _options()
    peers, missing = find_peers(options.peer_python or [options.python], PACKAGES)
    entrants = _entrants(options.python, peers)
    largest = max(implementation.megabytes for implementation in IMPLEMENTATIONS)
    texts = prefix(shuffled_texts(options.files), largest * options.scale)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = {
            python: Signing(python, options.cpu)
            for python in {options.python, *(e.python for e in entrants)}
        }
        try:
            bench = Bench(folder, workers, options)
            rows = [row for unit in UNITS for row in bench.speeds(texts, entrants, unit)]
            theory = {unit: bench.errors(texts, entrants, unit, rows) for unit in UNITS}
            same = {unit: bench.update_equals_batch(texts, entrants, unit) for unit in UNITS}
        finally:
            for worker in workers.values():
                worker.close()
    result = {
        "machine": machine(),
        "peers": [{"package": peer.package, "version": peer.version} for peer in peers],
        "missing": missing,
        "rounds": options.rounds,
        "rows": [asdict(row) for row in rows],
        "rmse_theory": theory,
        "update_equals_update_batch": same,
    }
    show(rows, theory, missing, same)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peer-python", action="append", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="size of all samples")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(namespace=argparse.Namespace(python=sys.executable))


def _entrants(python: str, peers: list[Peer]) -> list[Entrant]:
    holders = [Peer("wafermill", version("wafermill"), python), *peers]
    return [
        Entrant(
            implementation, f"{peer.package} {peer.version} {implementation.label}", peer.python
        )
        for peer in holders
        for implementation in IMPLEMENTATIONS
        if implementation.package == peer.package
    ]


class Bench:
    """Running workers, and the files through which they get texts and give signatures."""

    def __init__(
        self, folder: Path, workers: dict[str, Signing], options: argparse.Namespace
    ) -> None:
        self._folder, self._workers, self._options = folder, workers, options
        self._sizes: dict[str, float] = {}

    def _sample(self, texts: list[str], megabytes: float) -> str:
        """A file with the prefix; its real size is kept."""
        path = self._folder / f"texts-{megabytes}.json"
        if not path.exists():
            part = prefix(texts, megabytes * self._options.scale)
            path.write_text(json.dumps(part), encoding="utf-8")
            self._sizes[str(path)] = sum(len(text.encode()) for text in part) / 1e6
        return str(path)

    def speeds(self, texts: list[str], entrants: list[Entrant], unit: str) -> list[Row]:
        """Median rates of all implementations, which take turns in every round."""
        runs = []  # implementation, interpreter, file, row it belongs to or None
        rows: list[Row] = []
        for entrant in entrants:
            if unit not in entrant.implementation.units:
                continue
            file = self._sample(texts, entrant.implementation.megabytes)
            rows.append(Row(entrant.implementation.name, entrant.label, unit, self._sizes[file]))
            runs.append((entrant.implementation.name, entrant.python, file))
        for file in dict.fromkeys(run[2] for run in runs):
            runs += [(ours, self._options.python, file) for ours in OURS]
        rates: dict[tuple[str, str, str], list[float]] = {run: [] for run in runs}
        errors: dict[tuple[str, str, str], str] = {}
        for _ in range(self._options.rounds):
            for run in rates:
                answer = self._workers[run[1]].ask(
                    implementation=run[0], unit=unit, seed=1, texts=run[2], out=None,
                    least_seconds=0.2,
                )  # fmt: skip
                if "error" in answer:
                    errors[run] = answer["error"]
                else:
                    rates[run].append(self._sizes[run[2]] / answer["cpu"])
        for row, run in zip(rows, runs, strict=False):
            row.error = errors.get(run)
            if not rates[run]:
                continue
            row.mb_per_s = median(rates[run])
            for ours in OURS:
                if found := rates[(ours, self._options.python, run[2])]:
                    row.ours_over_it[ours] = median(found) / row.mb_per_s
        return rows

    def errors(
        self, texts: list[str], entrants: list[Entrant], unit: str, rows: list[Row]
    ) -> float:
        """Fill in RMSE and bias over all pairs and seeds; returns the RMSE of theory."""
        pairs, exact = similar_pairs(texts, PAIRS, unit)
        path = self._folder / f"pairs-{unit}.json"
        path.write_text(json.dumps(pairs), encoding="utf-8")
        truth = np.array(exact)
        for entrant in entrants:
            implementation = entrant.implementation
            repeated = implementation.name.endswith(("/update", "/list"))
            if repeated or implementation.own_shingles or unit not in implementation.units:
                continue
            differences = []
            for seed in SEEDS[: self._options.seeds]:
                signatures = self._sign(entrant, unit, str(path), seed)
                if signatures is not None:
                    estimate = (signatures[::2] == signatures[1::2]).mean(axis=1)
                    differences.append(estimate - truth)
            if differences:
                row = next(r for r in rows if (r.label, r.unit) == (entrant.label, unit))
                row.rmse = float(np.sqrt(np.mean(np.square(differences))))
                row.bias = float(np.mean(differences))
        return math.sqrt(float(np.mean(truth * (1 - truth))) / 128)

    def update_equals_batch(
        self, texts: list[str], entrants: list[Entrant], unit: str
    ) -> dict[str, bool]:
        """By scheme: does `update` make the signatures of `update_batch`?"""
        same = {}
        for one in entrants:
            if not one.implementation.name.endswith("/update"):
                continue
            batch = f"{one.implementation.name}_batch"
            other = next(e for e in entrants if e.implementation.name == batch)
            file = self._sample(texts, one.implementation.megabytes)
            made = [self._sign(entrant, unit, file, 1) for entrant in (one, other)]
            if made[0] is not None and made[1] is not None:
                same[one.label] = bool((made[0] == made[1]).all())
        return same

    def _sign(self, entrant: Entrant, unit: str, file: str, seed: int) -> np.ndarray | None:
        out = self._folder / "signatures.npy"
        answer = self._workers[entrant.python].ask(
            implementation=entrant.implementation.name, unit=unit, seed=seed, texts=file,
            out=str(out), least_seconds=0,
        )  # fmt: skip
        return None if "error" in answer else np.load(out)


def show(
    rows: list[Row], theory: dict[str, float], missing: list[str], same: dict[str, dict[str, bool]]
) -> None:
    console = Console(width=140)
    for unit in UNITS:
        table = Table(title=f"{unit}, 128 permutations; RMSE of theory {theory[unit]:.4f}")
        table.add_column("implementation")
        for heading in ("MB", "MB/s", "affine32 / it", "fss / it", "exact / it", "RMSE", "bias"):
            table.add_column(heading, justify="right")
        for row in (row for row in rows if row.unit == unit):
            if row.error:
                table.add_row(row.label, row.error)
                continue
            ratios = [f"{row.ours_over_it.get(ours, math.nan):.1f}" for ours in OURS]
            error = ["-" if row.rmse is None else f"{row.rmse:.4f}"]
            error.append("-" if row.bias is None else f"{row.bias:+.4f}")
            table.add_row(row.label, f"{row.megabytes:.1f}", f"{row.mb_per_s:.2f}", *ratios, *error)
        console.print(table)
        console.print(f"update equals update_batch: {same[unit]}")
    for name in missing:
        console.print(f"{name}: not installed in any interpreter given")


if __name__ == "__main__":
    main()
