"""Registries of more and more works: how long their index takes, and what a search in it costs.

    python -m benchmarks.provenance.many_works SHARDS... --works 40 1000 10000

The works are texts of 12,000 to 120,000 characters from the end of the shards, the texts that are
searched 50 MB from their beginning. CPU seconds of one thread, once warm; the median of three
searches. Works and texts of one kind have much in common, so this is nearer to the worst case than
novels in web pages are.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks.common.corpus import read_records, read_texts
from pipeline.screening.fingerprints.build import EXCERPT, build_index
from pipeline.screening.fingerprints.find import list_passages, warm_up_fingerprints

_SHORTEST, _LONGEST, _ROUNDS = 12_000, 120_000, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", nargs="+", help="JSON lines, plain or .zst")
    parser.add_argument("--works", nargs="+", type=int, default=[40, 1000, 10_000])
    parser.add_argument("--megabytes", type=float, default=50)
    options = parser.parse_args()
    searched = pa.array(read_texts(options.shards, options.megabytes), pa.large_string())
    works = list(_long_texts(options.shards[::-1], max(options.works)))
    warm_up_fingerprints()
    for count in options.works:
        chosen = [(f"work {n}", EXCERPT, text) for n, text in enumerate(works[:count])]
        size = sum(len(text.encode()) for _, _, text in chosen) / 1e6
        index, building = _timed(lambda chosen=chosen: build_index(chosen))
        searches = [_timed(lambda index=index: list_passages(searched, index))
                    for _ in range(_ROUNDS)]  # fmt: skip
        found, _ = searches[0]
        search = 1000 * statistics.median(seconds for _, seconds in searches) / options.megabytes
        print(f"{len(chosen):7,} works of {size:6.1f} MB: index {building:6.2f} s, "
              f"{1000 * building / size:4.0f} ms per MB of works; search {search:5.1f} ms per MB, "
              f"{len(found.document):,} passages", flush=True)  # fmt: skip


def _long_texts(shards: list[str], most: int) -> Iterator[str]:
    count = 0
    for record in read_records(shards):
        if count < most and _SHORTEST <= len(record["text"]) <= _LONGEST:
            count += 1
            yield record["text"]


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    result = call()
    return result, time.process_time() - begun


if __name__ == "__main__":
    main()
