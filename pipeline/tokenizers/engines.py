"""The programs that can turn text into ids, on one thread each, and which may be used for a
tokenizer.

  | engine | what it is | special tokens in text stay text by |
  |---|---|---|
  | fastokens | Rust, bounded caches, flat output | `split_special_tokens` |
  | gigatoken | Rust, caches that grow for ever | a tokenizer.json without special added tokens |
  | tokenizers | the oracle | `encode_special_tokens` |

Only the oracle is trusted: another engine may be used if it repeats the oracle's ids on the
battery. The verdict is kept in the user's cache under everything that could change it: the builds
of both, the tokenizer's content, the battery's version, and the processor, because engines choose
their code by its features. A check by examples can miss a defect that only some rare text shows;
the million fuzzed strings of the slow tests look for those.

Limits: one word without any break (64 MiB of one letter) takes the engines about half a minute and
3 GB, and `tokenizers` more: BPE keeps the whole word in memory. Documents are never cut.
"""

import contextlib
import functools
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dedup.arrays import I64, U32
from dedup.user_cache import user_cache
from pipeline.core.errors import ConfigError, FunctionError, ResourceError, escape_text
from pipeline.core.hashes import hash_bytes
from pipeline.core.plugins import PlugIn, PlugInCode, is_failure, load_plug_ins
from pipeline.core.storage import canonical_json, write_json
from pipeline.core.words import did_you_mean_or_all
from pipeline.tokenizers.battery import VERSION, battery
from pipeline.tokenizers.definition import TokenizerDefinition, reference_tokenizer

REFERENCE = "tokenizers"
_THREADS = {
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_GIGATOKEN_RENEWAL = 1 << 26
_LONG_S = "'\u017f"


@dataclass(frozen=True)
class FlatTokens:
    """Ids of N texts, one after another: ids (tokens,) uint32, text i is offsets[i]:offsets[i+1]
    with offsets (N + 1,) int64.
    """

    ids: U32
    offsets: I64


class Engine(Protocol):
    """A program that turns texts into ids, for one tokenizer, on one thread.

    It is built in every worker from `definition.json`, a Hugging Face tokenizer.json, and is used
    only where it gives the ids of `tokenizers` on some thousand strings (`prep` checks that once
    for each version). What it raises when it is built or encodes counts as "cannot be used".
    """

    def __init__(self, definition: TokenizerDefinition) -> None: ...

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """Return the ids of all texts, without any added BOS or EOS; the text of special tokens is
        text like any other."""
        ...


class Fastokens:
    """fastokens, `encode_batch_flat`.

    Where a tokenizer folds case in contractions (`(?i:'s|...)`), `tokenizers` reads an apostrophe
    and a long s (U+017F) as one after a word, and the o200k scanner of fastokens 0.3.5 does not.
    The rare texts that hold the two go to the oracle.
    """

    def __init__(self, definition: TokenizerDefinition) -> None:
        _use_one_thread()
        self._tokenizer = import_module("fastokens").Tokenizer.from_json_str(definition.json)
        folds_case = "(?i" in definition.json and "(?i" in json.dumps(
            json.loads(definition.json).get("pre_tokenizer")
        )
        self._oracle = Reference(definition) if folds_case else None

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        rare = [i for i, text in enumerate(texts) if _LONG_S in text] if self._oracle else []
        if self._oracle is None or not rare:
            return self._encode(texts)
        common = sorted({*range(len(texts))}.difference(rare))
        flat = self._encode([texts[i] for i in common])
        slow = self._oracle.encode([texts[i] for i in rare])
        return _interleave(((common, flat), (rare, slow)))

    def _encode(self, texts: Sequence[str]) -> FlatTokens:
        ids, offsets = self._tokenizer.encode_batch_flat(
            list(texts), add_special_tokens=False, split_special_tokens=True
        )
        return FlatTokens(
            np.frombuffer(ids, "<u4").astype(np.uint32, copy=False),
            np.frombuffer(offsets, "<u8").astype(np.int64),
        )


class Gigatoken:
    """gigatoken, `encode_batch`; built anew after 64 Mi characters, which bounds its caches."""

    def __init__(self, definition: TokenizerDefinition) -> None:
        _use_one_thread()
        content = json.loads(definition.json)
        tokens = content.get("added_tokens") or []
        content["added_tokens"] = [token for token in tokens if not token.get("special")]
        self._json = json.dumps(content, ensure_ascii=False)
        self._build: Callable[[str], Any] = import_module("gigatoken").Tokenizer.from_json
        self._tokenizer = self._build(self._json)
        self._characters = 0

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        if not texts:
            return FlatTokens(np.zeros(0, np.uint32), np.zeros(1, np.int64))
        if self._characters > _GIGATOKEN_RENEWAL:
            self._tokenizer, self._characters = self._build(self._json), 0
        self._characters += sum(map(len, texts))
        layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data, np.uint32)
        return FlatTokens(ids[offsets[0] : offsets[-1]], offsets - offsets[0])


class Reference:
    """`tokenizers`, the oracle itself: slow, and right by definition."""

    def __init__(self, definition: TokenizerDefinition) -> None:
        _use_one_thread()
        self.tokenizer = reference_tokenizer(definition)

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return _join([np.array(encoding.ids, np.uint32) for encoding in encodings])


ENGINES: dict[str, type[Engine]] = {
    "fastokens": Fastokens,
    "gigatoken": Gigatoken,
    REFERENCE: Reference,
}
"""Every engine, the preferred one first; the name is also that of its distribution."""


PLUG_INS = "wafermill.tokenizers"
"""Entry points of this group are classes that are an `Engine`."""


@functools.cache
def load_plugged_engines() -> Mapping[str, PlugIn[type]]:
    """The engines of plug-ins by name. Raises ConfigError for a broken one."""
    plug_ins = load_plug_ins(PLUG_INS, type, ENGINES)
    for plug_in in plug_ins.values():
        if not callable(getattr(plug_in.value, "encode", None)):
            raise plug_in.refuse("is a class without a method encode")
    return plug_ins


def engine_code(name: str) -> PlugInCode | None:
    """The code of an engine that a plug-in brings; None for a built-in one. Raises ConfigError for
    one that does not exist."""
    if name in ENGINES:
        return None
    if name not in load_plugged_engines():
        hint = did_you_mean_or_all(name, [*ENGINES, *load_plugged_engines()])
        raise ConfigError(f"tokenize.engine: there is no engine {escape_text(name)!r}{hint}")
    return load_plugged_engines()[name].code


def build_engine(name: str, definition: TokenizerDefinition) -> Engine:
    """The engine of this name for a tokenizer. Raises ConfigError for one that does not exist."""
    if engine_code(name) is None:
        return ENGINES[name](definition)
    return PluggedEngine(load_plugged_engines()[name], definition)


class PluggedEngine:
    """An engine of a plug-in: whatever it does wrong is a FunctionError that names it."""

    def __init__(self, plug_in: PlugIn[type], definition: TokenizerDefinition) -> None:
        self._plug_in = plug_in
        self._vocab_size = definition.vocab_size
        try:
            self._engine: Engine = plug_in.value(definition)
        except BaseException as error:
            raise plug_in.fail(f"the tokenizer {definition.name}", error) from error

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        """See `Engine`."""
        try:
            tokens = self._engine.encode(texts)
        except BaseException as error:
            if len(texts) > 1 and is_failure(error):
                for text in texts:  # which text it is
                    self.encode([text])
            where = escape_text(repr(texts[0]), 80) if len(texts) == 1 else f"{len(texts)} texts"
            raise self._plug_in.fail(where, error) from error
        problem = _find_problem(tokens, len(texts), self._vocab_size)
        if problem:
            first = escape_text(repr(texts[0]), 80) if texts else "no texts"
            raise FunctionError(f"{self._plug_in.shown} returned {problem} for {first}, …")
        return tokens


def _find_problem(tokens: Any, texts: int, vocab_size: int) -> str:
    """What is wrong with the ids of so many texts, in words; empty when nothing is."""
    if not isinstance(tokens, FlatTokens):
        return f"a {type(tokens).__name__}, no FlatTokens,"
    ids, offsets = np.asarray(tokens.ids), np.asarray(tokens.offsets)
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        return "ids that are no flat array of integers"
    if offsets.shape != (texts + 1,) or offsets.dtype.kind not in "ui":
        return f"offsets that are no array of {texts + 1:,} integers"
    if offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets.astype(np.int64)) < 0).any():
        return f"offsets that do not ascend from 0 to the {len(ids):,} ids"
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        return f"the id {outside[0]}, outside the vocabulary of {vocab_size:,} ids,"
    return ""


def _interleave(parts: Sequence[tuple[Sequence[int], FlatTokens]]) -> FlatTokens:
    """Tokens of texts that were encoded in parts; each part names the places of its texts."""
    rows = {
        place: flat.ids[flat.offsets[row] : flat.offsets[row + 1]]
        for places, flat in parts
        for row, place in enumerate(places)
    }
    return _join([rows[place] for place in range(len(rows))])


def _join(rows: Sequence[U32]) -> FlatTokens:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return FlatTokens(np.concatenate([np.zeros(0, np.uint32), *rows]), offsets)


def installed_build(name: str) -> str | None:
    """Version of an engine's distribution and a hash of the list of its files, or None."""
    code = engine_code(name)
    if code is not None:
        return str(code)
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    return f"{installed.version} {hash_bytes((installed.read_text('RECORD') or '').encode())[:12]}"


def installed_version(name: str) -> str:
    """Version of an engine that is installed, for messages."""
    code = engine_code(name)
    return distribution(name).version if code is None else code.version


def _use_one_thread() -> None:
    """Workers are processes: one thread each, unless the environment says otherwise. Ids do not
    depend on it.
    """
    for variable, value in _THREADS.items():
        os.environ.setdefault(variable, value)


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
    oracle = installed_build(REFERENCE)
    parts = [name, build, oracle, definition.content_hash, VERSION, _processor()]
    path = root / "tokenizer-checks" / f"{hash_bytes(canonical_json(parts))}.json"
    earlier = _read(path)
    if earlier is not None:
        return earlier
    outcome = _check(name, definition)
    with contextlib.suppress(ResourceError):
        write_json(path, {"engine": name, "passed": outcome.passed, "reason": outcome.reason})
    return outcome


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
        difference = first_difference(build_engine(name, definition), oracle, texts)
    except BaseException as error:  # any failure of an engine passes it over; a panic in Rust is
        # no Exception, but neither are signals and interrupts
        if not is_failure(error):
            raise
        return Verdict(False, f"{label} cannot use this tokenizer: {escape_text(str(error), 400)}")
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
    got, expected = (ids[at : at + 6].tolist() for ids in (wrong, right))
    return f"in {escape_text(repr(text), 80)} from token {at} on {got}, expected {expected}"


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
