"""Precision and recall of near-duplicate removal against true Jaccard similarity.

    python -m benchmarks.dedup.quality NEAR_DUPS [--peer-python PYTHON ...] [--json FILE]

NEAR_DUPS is a folder with `docs.jsonl.zst` (`id`, `text`) and `pairs.parquet` (`id_a`, `id_b`,
`jaccard`: every pair that reaches 0.1), similarity over sets of 13-character shingles. With
`--unit word5` the truth is computed here over sets of word 5-grams, which is nearer to what
datatrove and text-dedup measure.

One definition for everyone. Let a method keep the set K and drop the set D, and let t be 0.7, 0.8
or 0.9. Two documents are alike when their true similarity is at least t.

* precision(t): share of D that is alike to a document in K.
* recall(t): visit the documents of K in file order, then those of D in file order; greedily select
  one unless it is alike to one selected before. Of all documents that this greedy selection leaves
  out, the share that is in D. (K goes first so that nobody is charged for keeping another member of
  a cluster than we would.)
* F1(t): their harmonic mean.
* pair precision(t): share of D that is alike to the very document that the method dropped it for
  (ours: the representative; peers: the member of its cluster that stays). None where a method names
  nobody for all of D.
* pair recall(t): share of all alike pairs of which at least one document is in D.

Methods with a threshold run at each t (`=t`) and, when their documentation has one, at that
default. Every peer runs in its own process by its own script in `peers/`.
"""

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import dedup
from benchmarks.common.corpus import read_documents, write_documents
from benchmarks.common.measuring import (
    Peer,
    find_peers,
    last_error,
    machine,
    run_command,
    summary,
)
from benchmarks.dedup.peer_processes import PACKAGES, PEERS
from benchmarks.dedup.peers.shingling import shingle_set
from dedup.presets import Preset, resolve_preset

THRESHOLDS = (0.7, 0.8, 0.9)
WORDS = Preset(name="fineweb with word 5-grams", unit="word", size=5, bands=14, rows=8)
PRESETS = ("slimpajama", "fineweb", "strict", WORDS)
VERIFY = ("none", "estimate", "exact")
Pairs = dict[tuple[str, str], float]
Dropped = dict[str, str | None]
"""Dropped document -> the document that stays for it, where the method says so."""


@dataclass(frozen=True)
class Method:
    """One line of the table; `options` of a peer's script."""

    name: str
    peer: Peer | None
    script: str = ""
    options: tuple[str, ...] = ()
    threshold_option: bool = False
    preset: str | Preset = ""
    verify: str = ""


@dataclass
class Score:
    method: str
    threshold: float
    dropped: int
    precision: float
    recall: float
    f1: float
    pair_precision: float | None
    pair_recall: float


def main() -> None:
    options = _options()
    documents = list(read_documents([str(options.near_dups / "docs.jsonl.zst")]))
    pairs = true_pairs(options.near_dups, documents, options.unit)
    peers, missing = find_peers(options.peer_python or [], PACKAGES)
    scores: list[Score] = []
    failures = dict.fromkeys(missing, "not installed in any interpreter given")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "input" / "documents.jsonl"
        file.parent.mkdir()
        write_documents(file, documents)
        for method in [*our_methods(), *peer_methods(peers)]:
            try:
                scores += evaluate(method, documents, pairs, file, options.cpu)
            except PeerFailed as failure:
                failures[method.name] = str(failure)
    show(scores, failures, options.unit)
    if options.json:
        result = {
            "machine": machine(),
            "peers": [{"package": peer.package, "version": peer.version} for peer in peers],
            "unit": options.unit,
            "true_pairs": {t: len(_alike(pairs, t)) for t in THRESHOLDS},
            "documents": len(documents),
            "scores": [asdict(score) for score in scores],
            "failures": failures,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("near_dups", type=Path)
    parser.add_argument("--peer-python", action="append", metavar="PYTHON")
    parser.add_argument("--unit", choices=["char13", "word5"], default="char13")
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def our_methods() -> Iterator[Method]:
    """Every preset with every verification."""
    for preset in PRESETS:
        for verify in VERIFY:
            name, at_t = (
                f"wafermill {resolve_preset(preset).name}, verify {verify}",
                verify != "none",
            )
            yield Method(name, None, preset=preset, verify=verify, threshold_option=at_t)


def peer_methods(peers: list[Peer]) -> Iterator[Method]:
    """Each peer at its own settings, and with its threshold set to t where it has one."""
    for peer in peers:
        name = f"{peer.package} {peer.version}"
        if peer.package == "datasketch":
            script = "datasketch_dedup.py"
            yield Method(f"{name}, SlimPajama's way", peer, script)
            yield Method(f"{name}, components", peer, script, (), True)
            stream = ("--rule", "stream")
            yield Method(f"{name}, query first", peer, script, stream, True)
            verified = (*stream, "--verify")
            yield Method(f"{name}, query first, estimate", peer, script, verified, True)
        elif peer.package == "rensa":
            yield Method(f"{name}, words (README)", peer, "rensa_dedup.py", ("--unit", "words"))
            yield Method(f"{name}, char 13", peer, "rensa_dedup.py", (), True)
        elif peer.package == "datatrove":
            yield Method(f"{name}, defaults", peer, "datatrove_dedup.py")
        else:
            yield Method(f"{name}, defaults", peer, "text_dedup_dedup.py")
            yield Method(name, peer, "text_dedup_dedup.py", (), True)


class PeerFailed(Exception):
    """A peer's script did not end well; the text is its last message."""


def evaluate(
    method: Method, documents: list[dict[str, str]], pairs: Pairs, file: Path, cpu: int
) -> list[Score]:
    """Scores at every t; a method without a threshold runs once."""
    identifiers = [document["id"] for document in documents]
    dropped: Dropped = {}
    scores = []
    for number, threshold in enumerate(THRESHOLDS):
        if number == 0 or method.threshold_option:
            if method.peer is None:
                dropped = run_ours(method, documents, threshold)
            else:
                dropped = run_peer(method, threshold, file, cpu)
        name = method.name + (" =t" if method.threshold_option else "")
        scores.append(score(name, threshold, identifiers, dropped, _alike(pairs, threshold)))
    return scores


def run_ours(method: Method, documents: list[dict[str, str]], threshold: float) -> Dropped:
    found = dedup.find_duplicates(
        [document["text"] for document in documents],
        preset=method.preset,
        verify=method.verify,
        threshold=threshold,
    )
    return {
        documents[line["row"]]["id"]: documents[line["representative"]]["id"]
        for line in found.to_pylist()
    }


def run_peer(method: Method, threshold: float, file: Path, cpu: int) -> Dropped:
    assert method.peer is not None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [method.peer.python, str(PEERS / method.script), "--out", str(out), "--explain"]
        command += method.options
        if method.threshold_option:
            command += ["--threshold", str(threshold)]
        log = Path(folder) / "log"
        usage = run_command([*command, str(file)], {cpu}, Path(folder), log)
        if usage.code or not summary(usage.output):
            raise PeerFailed(f"exit code {usage.code}: {last_error(log)}")
        lines = (out / "dropped.jsonl").read_text(encoding="utf-8").splitlines()
        return dict(json.loads(line) for line in lines)


def true_pairs(folder: Path, documents: list[dict[str, str]], unit: str) -> Pairs:
    """True similarity of every pair that reaches the lowest threshold."""
    if unit == "char13":
        table = pq.read_table(folder / "pairs.parquet").to_pylist()
        return {
            (line["id_a"], line["id_b"]): line["jaccard"]
            for line in table
            if line["jaccard"] >= THRESHOLDS[0]
        }
    sets = {document["id"]: shingle_set(document["text"], unit) for document in documents}
    holders: dict[str, list[str]] = defaultdict(list)
    for identifier, shingles in sets.items():
        for shingle in shingles:
            holders[shingle].append(identifier)
    shared = Counter(pair for found in holders.values() for pair in combinations(found, 2))
    similarity = {
        (a, b): count / (len(sets[a]) + len(sets[b]) - count) for (a, b), count in shared.items()
    }
    return {pair: value for pair, value in similarity.items() if value >= THRESHOLDS[0]}


def _alike(pairs: Pairs, threshold: float) -> set[tuple[str, str]]:
    return {pair for pair, value in pairs.items() if value >= threshold}


def score(
    name: str,
    threshold: float,
    identifiers: list[str],
    dropped: Dropped,
    alike: set[tuple[str, str]],
) -> Score:
    """All figures of one method at one threshold, as the file's docstring defines them."""
    neighbours: dict[str, set[str]] = defaultdict(set)
    for a, b in alike:
        neighbours[a].add(b)
        neighbours[b].add(a)
    kept = [identifier for identifier in identifiers if identifier not in dropped]
    ordered = [*kept, *(identifier for identifier in identifiers if identifier in dropped)]
    selected: set[str] = set()
    for identifier in ordered:
        if not neighbours[identifier] & selected:
            selected.add(identifier)
    left_out = [identifier for identifier in ordered if identifier not in selected]
    right = sum(not neighbours[identifier].isdisjoint(kept) for identifier in dropped)
    precision = right / len(dropped) if dropped else 1.0
    recall = sum(identifier in dropped for identifier in left_out) / len(left_out)
    named = [(one, other) for one, other in dropped.items() if other is not None]
    return Score(
        method=name,
        threshold=threshold,
        dropped=len(dropped),
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        pair_precision=sum(other in neighbours[one] for one, other in named) / len(named)
        if named
        else None,
        pair_recall=sum(a in dropped or b in dropped for a, b in alike) / len(alike),
    )


def show(scores: list[Score], failures: dict[str, str], unit: str) -> None:
    console = Console(width=170)
    table = Table(title=f"against true Jaccard over {unit} sets; three figures: t = .7 / .8 / .9")
    table.add_column("method")
    for heading in ("dropped", "precision", "recall", "F1", "pair precision", "pair recall"):
        table.add_column(heading, justify="right")
    fields = ("precision", "recall", "f1", "pair_precision", "pair_recall")
    for first in range(0, len(scores), len(THRESHOLDS)):
        lines = scores[first : first + len(THRESHOLDS)]
        counts = dict.fromkeys(line.dropped for line in lines)
        cells = [" ".join(_figure(getattr(line, field)) for line in lines) for field in fields]
        table.add_row(lines[0].method, " ".join(map(str, counts)), *cells)
    console.print(table)
    for name, reason in failures.items():
        console.print(f"{name}: {reason}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
