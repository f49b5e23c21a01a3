"""Makes signatures on request, in the interpreter that has the implementation.

    PYTHON peers/signing.py CPU

Pins itself to one CPU, then reads one JSON request a line and answers one JSON line:
{"implementation", "unit", "seed", "texts": FILE, "out": FILE or null, "least_seconds"} gives
{"cpu", "wall": seconds of one pass over the texts, "passes"} or {"error"}. The texts are a JSON
list. Making the input a library wants (Python strings, an Arrow array, ready hashes for the rows
that say so) is not timed; everything from there to finished sketches is. `out` receives the
signatures, one line a text (numpy `.npy`).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from shingling import shingles

PERMUTATIONS = 128


class Signer(NamedTuple):
    """Three steps; only `sign` is timed."""

    prepare: Callable[[list[str]], Any]
    sign: Callable[[Any], Any]
    matrix: Callable[[Any], np.ndarray]


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    for line in sys.stdin:
        try:
            answer = measure(json.loads(line))
        except Exception as error:  # noqa: BLE001 (the asking side reports it)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def measure(request: dict[str, Any]) -> dict[str, float]:
    signer = _signer(request["implementation"], request["unit"], request["seed"])
    texts = _texts(request["texts"])
    signer.sign(signer.prepare(texts[:2]))  # imports and compiles
    ready = signer.prepare(texts)
    passes = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while passes == 0 or time.process_time() - cpu < request["least_seconds"]:
        result = signer.sign(ready)
        passes += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if request["out"]:
        np.save(request["out"], signer.matrix(result))
    return {"cpu": cpu / passes, "wall": wall / passes, "passes": passes}


@cache
def _texts(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


@cache
def _signer(implementation: str, unit: str, seed: int) -> Signer:
    tool, _, variant = implementation.partition(":")
    makers = {
        "wafermill": wafermill,
        "datasketch": datasketch,
        "rensa": rensa,
        "datatrove": datatrove,
        "text-dedup": text_dedup,
    }
    return makers[tool](variant, unit, seed)


def wafermill(variant: str, unit: str, seed: int) -> Signer:
    """`scheme/hash` over an Arrow array, or over a list of strings with `/list`."""
    import pyarrow as pa

    import dedup
    from dedup.presets import Preset

    scheme, base_hash, *strings = variant.split("/")
    kind, size = ("char", 13) if unit == "char13" else ("word", 5)
    preset = Preset(name=unit, unit=kind, size=size, bands=9, rows=13)

    def sign(texts: Any) -> np.ndarray:
        return dedup.signatures(
            texts, preset=preset, num_perm=PERMUTATIONS, scheme=scheme, hash=base_hash, seed=seed
        )

    prepare = list if strings else lambda texts: pa.array(texts, pa.large_string())
    return Signer(prepare, sign, np.asarray)


def datasketch(variant: str, unit: str, seed: int) -> Signer:
    """`scheme/hash/update` as SlimPajama wrote it, shingle by shingle, or `.../update_batch`."""
    from datasketch import MinHash
    from datasketch.hashfunc import sha1_hash32

    scheme, base_hash, method = variant.split("/")
    if base_hash == "xxh32":
        from xxhash import xxh32_intdigest as hashfunc
    else:
        hashfunc = sha1_hash32

    def sketch(text: str) -> MinHash:
        minhash = MinHash(PERMUTATIONS, seed=seed, scheme=scheme, hashfunc=hashfunc)
        if method == "update":
            for shingle in shingles(text, unit):
                minhash.update(shingle.encode())
        elif encoded := [shingle.encode() for shingle in shingles(text, unit)]:
            for start in range(0, len(encoded), 512):
                minhash.update_batch(encoded[start : start + 512])
        return minhash

    return Signer(
        list,
        lambda texts: [sketch(text) for text in texts],
        lambda made: np.array([minhash.hashvalues for minhash in made]),
    )


def rensa(variant: str, unit: str, seed: int) -> Signer:
    """R-MinHash from texts (`strings`) or from hashes made before (`hashes`)."""
    from rensa import RMinHash

    def sketch(text: str) -> Any:
        minhash = RMinHash(PERMUTATIONS, seed)
        minhash.update(shingles(text, unit))
        return minhash

    def hashed(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rows = [RMinHash.hash_token_sets([shingles(text, unit)])[0] for text in texts]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.uint64)
        return np.concatenate([np.array(row, np.uint64) for row in rows]), offsets

    if variant == "hashes":
        return Signer(
            hashed,
            lambda ready: RMinHash.digest_matrix_from_flat_token_hashes(*ready, PERMUTATIONS, seed),
            lambda made: np.array(made.to_rows(), np.uint32),
        )
    return Signer(
        list,
        lambda texts: [sketch(text) for text in texts],
        lambda made: np.array([minhash.digest() for minhash in made], np.uint32),
    )


def datatrove(variant: str, unit: str, seed: int) -> Signer:
    """Its first stage without the files: normalising, spaCy words, xxhash64, 16 x 8 hashes."""
    from datatrove.pipeline.dedup import MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    config = MinhashConfig(num_buckets=16, hashes_per_bucket=8, seed=seed)
    stage = MinhashDedupSignature("/nonexistent", config=config)

    def sketch(text: str) -> list[list[int]] | None:
        hashed = stage.get_shingles(text)
        return stage.get_signature(hashed) if hashed.size else None

    return Signer(list, lambda texts: [sketch(text) for text in texts], np.array)


def text_dedup(variant: str, unit: str, seed: int) -> Signer:
    """The function that its MinHash command maps over a data set, with xxh3 (0.4.0 or 0.4.1)."""
    if version("text-dedup") < "0.4.1":
        return _text_dedup_options(seed)
    from text_dedup.config.algorithms import MinHashAlgorithmConfig

    settings = MinHashAlgorithmConfig(
        algorithm_name="minhash", text_column="text", seed=seed, num_perm=PERMUTATIONS,
        ngram_size=5, threshold=0.7, bands=1, rows=PERMUTATIONS,
    )  # fmt: skip
    embed = settings.get_embed_func()
    return Signer(list, lambda texts: [embed([text], [0]) for text in texts], np.array)


def _text_dedup_options(seed: int) -> Signer:
    from text_dedup.minhash import embed_func
    from text_dedup.utils import xxh3_32hash

    prime, random = np.uint64((1 << 61) - 1), np.random.RandomState(seed)
    settings = {
        "num_perm": PERMUTATIONS,
        "ngram_size": 5,
        "min_length": 5,
        "hashranges": [(0, PERMUTATIONS)],
        "permutations": (
            random.randint(1, prime, size=(PERMUTATIONS,), dtype=np.uint64),
            random.randint(0, prime, size=(PERMUTATIONS,), dtype=np.uint64),
        ),
        "hash_func": xxh3_32hash,
        "dtype": np.uint64,
        "max_hash": np.uint32((1 << 32) - 1),
        "modulo_prime": prime,
    }
    return Signer(list, lambda texts: [embed_func(text, 0, **settings) for text in texts], np.array)


if __name__ == "__main__":
    main()
