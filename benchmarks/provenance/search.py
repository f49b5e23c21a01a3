"""`prep search`: the places of excerpts in texts, next to a regular expression and `grep -iF`.

    python -m benchmarks.provenance.search pile_sample/*.jsonl.zst --megabytes 200

Excerpts of 3, 10 and 50 words at random places of random texts. Ours finds them word for word and
nearly, whatever lies between the words; Arrow's `match_substring_regex` (RE2, without case, any
white space between words) and GNU grep (without case, a line of a file for each text, with single
blanks) find them word for word only. CPU seconds of one core, alternating rounds, medians.
"""

import argparse
import os
import random
import re
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.common.corpus import read_texts
from pipeline.explain.text_scan import find_matching_rows, make_query

WORDS = (3, 10, 50)


def excerpts(texts: list[str], words: int, count: int, seed: int) -> list[str]:
    """So many runs of `words` words from texts that have twice as many."""
    rng, found = random.Random(f"{seed} {words}"), []
    while len(found) < count:
        parts = rng.choice(texts).split()
        if len(parts) >= 2 * words:
            begin = rng.randrange(len(parts) - words)
            found.append(" ".join(parts[begin : begin + words]))
    return found


def ours(column: pa.ChunkedArray, query: str) -> int:
    return len(find_matching_rows(column, make_query(query)))


def by_regex(column: pa.ChunkedArray, query: str) -> int:
    pattern = r"\s+".join(map(re.escape, query.split()))
    return int(pc.sum(pc.match_substring_regex(column, pattern, ignore_case=True)).as_py())


def by_grep(path: Path, query: str) -> int:
    command = ["grep", "-ciF", "--", query, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    return int(done.stdout)


def cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", nargs="+", help="JSON lines, plain or .zst")
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--queries", type=int, default=9, help="of each length")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    texts = read_texts(options.shards, options.megabytes)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        lines = Path(directory) / "texts"
        lines.write_text("\n".join(" ".join(text.split()) for text in texts), encoding="utf-8")
        ways: dict[str, Callable[[str], int]] = {
            "wafermill": lambda query: ours(column, query),
            "arrow": lambda query: by_regex(column, query),
            "grep -iF": lambda query: by_grep(lines, query),
        }
        ours(column, "warm up these words")
        print(f"{len(texts):,} texts, {megabytes:,.0f} MB; load {os.getloadavg()[0]:.1f}")
        for words in WORDS:
            rates: dict[str, list[float]] = {name: [] for name in ways}
            missed = dict.fromkeys(ways, 0)
            for query in excerpts(texts, words, options.queries, options.seed):
                for name, way in ways.items():
                    started = cpu_seconds()
                    missed[name] += not way(query)
                    rates[name].append(megabytes / (cpu_seconds() - started))
            for name, measured in rates.items():
                rate, slowest = statistics.median(measured), min(measured)
                print(
                    f"{words:3} words  {name:10} {rate:7,.0f} MB/s of CPU  (slowest {slowest:,.0f})"
                    f"  {missed[name]} of {options.queries} missed"
                )


if __name__ == "__main__":
    main()
