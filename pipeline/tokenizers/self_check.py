"""Whether an engine may be used for a tokenizer: only if it repeats the oracle's ids on the
battery.

The verdict is kept in the user's cache under everything that could change it: the builds of the
engine and of `tokenizers` (versions and the hashes of their files), the tokenizer's content, the
version of the battery, and the processor, because engines choose their code by its features.

Limits: a check by examples. It finds another regex, Unicode table, merge order or block border; a
defect that only some rare text shows it can miss, which is what the million fuzzed strings of the
slow tests are for.
"""

import contextlib
import json
import platform
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from dedup.arrays import U32
from dedup.user_cache import user_cache
from pipeline.core.errors import ResourceError, escape_text
from pipeline.core.storage import canonical_json, hash_bytes, write_json
from pipeline.tokenizers.battery import VERSION, battery
from pipeline.tokenizers.definition import TokenizerDefinition
from pipeline.tokenizers.engines import (
    ENGINES,
    REFERENCE,
    Engine,
    FlatTokens,
    Reference,
    installed_build,
    installed_version,
)

_BATCH = 512


@dataclass(frozen=True)
class Verdict:
    """Whether an engine may be used, and why or why not."""

    passed: bool
    reason: str


def verdict(name: str, definition: TokenizerDefinition, cache: Path | None = None) -> Verdict:
    """The verdict on engine `name` (not the oracle), kept or made by a check of about a second.

    `cache` defaults to the user's cache directory; one that cannot be written costs the next
    process another check, nothing else.
    """
    build = installed_build(name)
    if build is None:
        return Verdict(False, f"{name} is not installed")
    root = cache if cache is not None else user_cache()
    if root is None:
        return _check(name, definition)
    path = root / "tokenizer-checks" / f"{_key(name, build, definition)}.json"
    kept = _read(path)
    if kept is not None:
        return kept
    found = _check(name, definition)
    with contextlib.suppress(ResourceError):
        write_json(path, {"engine": name, "passed": found.passed, "reason": found.reason})
    return found


def first_difference(engine: Engine, oracle: Engine, texts: list[str]) -> str | None:
    """Where the ids of `engine` first differ from the oracle's, in words; None where nowhere.

    The texts go through the engine twice, in order and in reverse, so that what its caches hold
    from one text cannot hide what they do to another.
    """
    expected = oracle.encode(texts)
    forward = _in_batches(engine, texts)
    backward = _in_batches(engine, texts[::-1])
    for i, text in enumerate(texts):
        right = _row(expected, i)
        for wrong in (_row(forward, i), _row(backward, len(texts) - 1 - i)):
            if not np.array_equal(wrong, right):
                return _difference(text, wrong, right)
    return None


def _check(name: str, definition: TokenizerDefinition) -> Verdict:
    oracle = Reference(definition)
    texts = battery(oracle.tokenizer, definition.added_tokens)
    label = f"{name} {installed_version(name)}"
    try:
        difference = first_difference(ENGINES[name](definition), oracle, texts)
    except BaseException as error:  # any failure of an engine passes it over; a panic in Rust is
        # no Exception, but neither are signals and interrupts
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return Verdict(False, f"{label} cannot use this tokenizer: {escape_text(str(error))}")
    if difference is not None:
        return Verdict(False, f"{label} differs from tokenizers: {difference}")
    reference = f"{REFERENCE} {installed_version(REFERENCE)}"
    return Verdict(True, f"{label} gave the ids of {reference} on {len(texts)} strings")


def _in_batches(engine: Engine, texts: list[str]) -> FlatTokens:
    rest = iter(texts)
    ids, lengths = [np.zeros(0, np.uint32)], [np.zeros(1, np.int64)]
    while batch := list(islice(rest, _BATCH)):
        flat = engine.encode(batch)
        ids.append(flat.ids)
        lengths.append(np.diff(flat.offsets))
    return FlatTokens(np.concatenate(ids), np.cumsum(np.concatenate(lengths)))


def _row(flat: FlatTokens, row: int) -> U32:
    return flat.ids[flat.offsets[row] : flat.offsets[row + 1]]


def _difference(text: str, wrong: U32, right: U32) -> str:
    both = min(len(wrong), len(right))
    unequal = np.flatnonzero(wrong[:both] != right[:both])
    at = int(unequal[0]) if len(unequal) else both
    found, expected = (ids[at : at + 6].tolist() for ids in (wrong, right))
    return f"in {escape_text(repr(text), 80)} from token {at} on {found}, expected {expected}"


def _key(name: str, build: str, definition: TokenizerDefinition) -> str:
    parts = [name, build, installed_build(REFERENCE), definition.content_hash, VERSION]
    return hash_bytes(canonical_json([*parts, _processor()]))


def _processor() -> str:
    """Architecture and, on Linux, the features of the first processor."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        features = [line for line in islice(file, 64) if line.startswith(("flags", "Features"))]
        return f"{platform.machine()} {features[0] if features else ''}"
    return f"{platform.machine()} {platform.processor()}"


def _read(path: Path) -> Verdict | None:
    """A kept verdict; None where there is none or the file is damaged."""
    try:
        content = json.loads(path.read_bytes())
        passed, reason = content["passed"], content["reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    valid = isinstance(passed, bool) and isinstance(reason, str)
    return Verdict(passed, reason) if valid else None
