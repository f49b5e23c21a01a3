"""Near-duplicates by rensa's R-MinHash deduplicator, as its README shows it.

    PYTHON peers/rensa_dedup.py --out DIR [--threshold 0.8] [--unit char13] FILES...

`RMinHashDeduplicator(threshold, num_perm=128, use_lsh=True)`: rensa picks the bands, keeps a
document when no kept one reaches the threshold by estimate. Tokens: 13-character shingles, word
5-grams, or the single words of the README's example (`words`).
"""

import argparse
from importlib.metadata import version
from pathlib import Path

from documents import read, write_result
from rensa import RMinHash, RMinHashDeduplicator
from shingling import shingles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--unit", choices=["char13", "word5", "words"], default="char13")
    options = parser.parse_args()
    deduplicator = RMinHashDeduplicator(threshold=options.threshold, num_perm=128, use_lsh=True)
    representatives: dict[int, int] = {}
    for row, (_, text) in enumerate(read(options.files)):
        tokens = text.split() if options.unit == "words" else shingles(text, options.unit)
        if not tokens:
            continue
        minhash = RMinHash(num_perm=128, seed=42)
        minhash.update(tokens)
        if not deduplicator.add(str(row), minhash):
            found = deduplicator.get_duplicates(minhash) if options.explain else [row]
            representatives[row] = min(map(int, found))
    write_result(options, representatives, {"tokens": options.unit}, {"rensa": version("rensa")})


if __name__ == "__main__":
    main()
