"""`prep explore` and `prep search` on made runs: how long a page takes, and a search with an index.

    python -m benchmarks.explore.pages /big/disk/made --documents 10000000

A page is asked for by HTTP in one process, each address once, so that nothing is remembered; the
figures are wall-clock times on this machine, and CPU seconds where nothing but the processor
counts. Excerpts of 1, 3 and 10 words are those of random texts. The run is made where it is not
there yet.
"""

import argparse
import os
import random
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import numpy as np
from starlette.testclient import TestClient

from benchmarks.explore.made_texts import SIGNALS, make_texts
from pipeline.engine.progress import Progress
from pipeline.explain.text_search import TextSearch, scan_run
from pipeline.explain.word_index.lookup import WordIndex, open_word_index
from pipeline.explore.explorer import PAGE, Explorer
from pipeline.explore.server import make_app
from pipeline.runs import layout
from pipeline.runs.records import map_arrow
from pipeline.stories.word_index import index_words

QUIET = Progress(quiet=True)


def seconds_of(call: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a call."""
    wall, used = time.perf_counter(), _cpu()
    call()
    return time.perf_counter() - wall, _cpu() - used


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def show(name: str, calls: Iterable[Callable[[], object]]) -> None:
    """Print how long the calls take."""
    walls, cpus = zip(*map(seconds_of, calls), strict=True)
    figures = [1000 * f(values) for values in (walls, cpus) for f in (statistics.median, max)]
    print("{:26} wall {:6.0f} ms (at most {:6.0f})   CPU {:6.0f} ms (at most {:6.0f})".format(
        name, *figures), flush=True)  # fmt: skip


def open_explorer(directory: Path) -> Explorer:
    """Before all else, so that the memory is what this takes."""
    opened: list[Explorer] = []
    wall, cpu = seconds_of(lambda: opened.append(Explorer(directory)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"opened in {wall:.1f} s ({cpu:.1f} s of CPU), {memory:.1f} GB at most", flush=True)
    return opened[0]


def measure_pages(explorer: Explorer, documents: int, count: int, rng: random.Random) -> None:
    directory = explorer.directory
    client = TestClient(make_app(explorer))

    def ask(name: str, addresses: Iterable[str]) -> None:
        show(name, (partial(_fetch, client, address) for address in addresses))

    numbers = range(count)
    ask("first page", ["/documents"])
    ask("page anywhere", (f"/documents?after={rng.randrange(documents)}" for _ in numbers))
    ask("source", (f"/documents?source=source+{n % 17:02d}" for n in numbers))
    ask(
        "state, reason and split",
        (
            f"/documents?state=duplicate&reason=near_duplicate&source=source+{n:02d}"
            for n in range(9)
        ),
    )
    ask("range of length", (f"/documents?range=text_bytes:{n}:{n + 500}" for n in numbers))
    ask(
        "range of a signal",
        (f"/documents?range=quality:0.{n:02d}:0.9&chart=tokens" for n in numbers),
    )
    ask("chart of a signal", (f"/documents?chart={name}" for name in SIGNALS))
    ask(
        "expression",
        (f"/documents?where={quote(f'quality * symbols > 0.{90 + n}')}" for n in range(9)),
    )
    ask("language", (f"/documents?language={name}" for name in ("en", "de", "fr", "es")))
    keys = explorer.records.table.take(
        np.array([rng.randrange(documents) for _ in numbers]), ["doc_key"]
    )
    ask("a document", (f"/documents/{key.hex()}" for key in keys["doc_key"].to_pylist()))
    if (directory / layout.WORD_INDEX).is_dir():
        for words in (1, 3):
            queries = excerpts(directory, words, count, rng)
            ask(f"page of words: {words}", (f"/documents?q={quote(query)}" for query in queries))
    explorer.close()


def _fetch(client: TestClient, address: str) -> None:
    answer = client.get(address)
    if answer.status_code != 200:
        print(address, answer.status_code, re.findall("<p>(.*?)</p>", answer.text)[:1])


def excerpts(directory: Path, words: int, count: int, rng: random.Random) -> list[str]:
    """So many runs of words of random texts."""
    paths, found = sorted((directory / "documents").glob("*.arrow")), []
    for _ in range(count):
        table = map_arrow(rng.choice(paths))
        text = table["text"][rng.randrange(len(table))].as_py().split()
        first = rng.randrange(len(text) - words)
        found.append(" ".join(text[first : first + words]))
    return found


def _search(directory: Path, query: str, index: WordIndex, found: list[int]) -> None:
    """The first page of what is found."""
    search = TextSearch(directory, query, QUIET, index)
    found.append(len(search.rows))
    list(islice(search.read(search.rows), PAGE))


def measure_search(directory: Path, count: int, rng: random.Random, with_plain: bool) -> None:
    if not (directory / layout.WORD_INDEX / layout.MANIFEST).exists():
        wall, cpu = seconds_of(lambda: index_words(directory, 0))
        print(f"index made in {wall:.0f} s ({cpu:.0f} s of CPU)")
    files = list((directory / layout.WORD_INDEX).rglob("*.arrow"))
    size = sum(path.stat().st_size for path in files)
    texts = sum(path.stat().st_size for path in (directory / "documents").glob("*.arrow"))
    print(
        f"index: {size / 1e9:.2f} GB in {len(files)} shards, of {texts / 1e9:.2f} GB of documents"
    )
    opened: list[WordIndex] = []
    wall, _ = seconds_of(lambda: opened.append(open_word_index(directory)))  # type: ignore[arg-type]
    first, _ = seconds_of(lambda: _search(directory, "warming up", opened[0], []))
    print(f"index opened in {wall:.2f} s, first search {first:.2f} s")
    for words in (1, 3, 10):
        found: list[int] = []
        queries = excerpts(directory, words, count, rng)
        show(
            f"search, {words} words",
            (partial(_search, directory, query, opened[0], found) for query in queries),
        )
        print(f"    in {statistics.median(found):,.0f} texts, at most in {max(found):,}")
    if with_plain:
        query = excerpts(directory, 3, 1, rng)[0]
        (directory / layout.WORD_INDEX).rename(directory / "aside")
        wall, cpu = seconds_of(lambda: scan_run(directory, query, QUIET))
        (directory / "aside").rename(directory / layout.WORD_INDEX)
        print(f"search without the index: {wall:.1f} s ({cpu:.1f} s of CPU)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the run is, or is to be made")
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--count", type=int, default=20, help="requests of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-plain", action="store_true", help="no search of all texts")
    options = parser.parse_args()
    if not options.directory.exists():
        wall, _ = seconds_of(lambda: make_texts(options.directory, options.documents))
        print(f"made in {wall:.0f} s")
    rng = random.Random(options.seed)
    print(f"{options.documents:,} documents; load {os.getloadavg()[0]:.1f}")
    explorer = open_explorer(options.directory)
    measure_search(options.directory, options.count, rng, not options.without_plain)
    measure_pages(explorer, options.documents, options.count, rng)


if __name__ == "__main__":
    main()
