"""Near-duplicates by datasketch's MinHash and MinHashLSH, as a script a user would write.

    PYTHON peers/datasketch_dedup.py --out DIR [--threshold 0.8] [--rule components] FILES...

SlimPajama's recipe: its normalisation, 13-character shingles, 128 permutations, MinHashLSH with the
bands that datasketch chooses for the threshold. `components`: connected components of all
candidates, the first document stays. `stream`: a document stays when a query finds nothing among
those that stay (the use that datasketch's documentation shows). `--verify` keeps only candidates
whose estimated similarity reaches the threshold. Writes `kept.jsonl`, and `dropped.jsonl` of
[id, representative] with `--explain`.
"""

import argparse
from pathlib import Path

import datasketch
from datasketch import MinHash, MinHashLSH
from documents import Clusters, read, write_result
from shingling import shingles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--rule", choices=["components", "stream"], default="components")
    parser.add_argument("--hash", choices=["sha1", "xxh32"], default="sha1")
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    lsh = MinHashLSH(threshold=options.threshold, num_perm=128)
    clusters = Clusters()
    sketches: dict[int, MinHash] = {}
    for row, (_, text) in enumerate(read(options.files)):
        minhash = sketch(text, options.hash)
        if minhash.is_empty():
            continue
        found = lsh.query(minhash)
        if options.verify:
            found = [f for f in found if minhash.jaccard(sketches[f]) >= options.threshold]
            sketches[row] = minhash
        for other in found:
            clusters.unite(other, row)
        if options.rule == "components" or not found:
            lsh.insert(row, minhash, check_duplication=False)
    settings = {"bands": lsh.b, "rows": lsh.r, "rule": options.rule, "hash": options.hash}
    version = {"datasketch": datasketch.__version__}
    write_result(options, clusters.representatives(), settings, version)


def sketch(text: str, hash_name: str) -> MinHash:
    """datasketch's default scheme; `update_batch` in pieces that stay in the cache."""
    if hash_name == "xxh32":
        from xxhash import xxh32_intdigest

        minhash = MinHash(num_perm=128, hashfunc=xxh32_intdigest)
    else:
        minhash = MinHash(num_perm=128)
    encoded = [shingle.encode() for shingle in shingles(text, "char13")]
    for start in range(0, len(encoded), 512):
        minhash.update_batch(encoded[start : start + 512])
    return minhash


if __name__ == "__main__":
    main()
