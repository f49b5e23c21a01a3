"""Lines of jsonl packed in every way, in frames that end anywhere."""

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from itertools import pairwise

from pipeline.core import zstd


def cut_into(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted(p % (len(data) + 1) for p in places)
    return [data[a:b] for a, b in pairwise([0, *ends, len(data)])]


def frames(pack: Callable[[bytes], bytes]) -> Callable[[bytes, list[int]], bytes]:
    return lambda data, cuts: b"".join(pack(piece) for piece in cut_into(data, cuts))


PACKED: dict[str, Callable[[bytes, list[int]], bytes]] = {
    ".jsonl": lambda data, cuts: data,
    ".jsonl.zst": frames(zstd.compress),
    ".jsonl.gz": frames(lambda data: gzip.compress(data, mtime=0)),
    ".jsonl.bz2": frames(bz2.compress),
    ".jsonl.xz": frames(lzma.compress),
}
