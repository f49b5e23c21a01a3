"""fastText's lid.176.ftz (Joulin et al. 2016, arXiv:1607.01759), read and asked by compiled code:
bit for bit what fastText 0.9.2 answers on x86-64, several times as fast.

A text is one line. Its words are parted by white space; those that the model knows have a row each,
and all have rows for their runs of 2 to 4 characters, with `<` before and `>` behind the word: the
hash of a run leads to a bucket, and of most buckets the row was pruned. The mean of all rows is the
vector of the text. Labels are leaves of a Huffman tree, whose other nodes give the probability of
either child. Sums are in fastText's order and in single precision, so that the last bit is equal.
"""

import hashlib
import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, U8
from dedup.compiled import kernel

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U16 = npt.NDArray[np.uint16]

FILE_HASH = "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
"""SHA-256 of the one file that is read: its sizes are below."""
_WORDS, _LABELS, _RUNS, _BUCKETS = 7_235, 176, 42_765, np.uint32(2_000_000)
_SIZE, _SHORTEST, _LONGEST = 16, 2, 4
_HEAD, _PART, _CENTROIDS = 92, 2, 256

_PRUNED = np.uint16(0xFFFF)
_SLOTS = 1 << 15
_IS_SPACE = np.isin(np.arange(256), np.frombuffer(b" \n\r\t\v\f\0", np.uint8))
_LABEL = np.frombuffer(b"__label__", np.uint8)
_BEGIN, _END = (np.uint8(ord(c)) for c in "<>")
_OFFSET, _PRIME, _SIGN = np.uint32(2166136261), np.uint32(16777619), np.uint32(0xFFFFFF00)
_CONTINUES, _TOP_TWO = np.uint8(0x80), np.uint8(0xC0)
_LEAST = np.float32(math.log(1e-5))


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """The model: L labels, W words (of which the first is the end of a line), R rows.

    letters, starts (W + 1,): the bytes of the words, end to end; slots (_SLOTS,): a hash table of
    words, counted from 1. rows (R, 16): those of words come first; row_of_bucket (_BUCKETS,): a
    row, or `_PRUNED`. children (2 L - 1, 2): left and right child of the nodes of the tree, of
    which the first L are the labels and the last is the root; nodes (L, 16): the vectors of those
    that are no labels, and one more.
    """

    labels: tuple[str, ...]
    letters: U8
    starts: I64
    slots: I32
    rows: F32
    row_of_bucket: U16
    children: I32
    nodes: F32


def read_language_model(path: Path) -> LanguageModel:
    """Read lid.176.ftz. Raises ValueError for any other file."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != FILE_HASH:
        raise ValueError(f"{path}: another file than lid.176.ftz")
    file = BytesIO(data)
    file.seek(_HEAD)
    entries = [_read_entry(file) for _ in range(_WORDS + _LABELS)]
    words, labels = [word for word, _ in entries[:_WORDS]], entries[_WORDS:]
    bucket, run = _read(file, "<i4", 2 * _RUNS).reshape(-1, 2).T
    row_of_bucket = np.full(_BUCKETS, _PRUNED)
    row_of_bucket[bucket] = run + _WORDS
    ends = np.cumsum([0, *map(len, words)])
    letters = np.frombuffer(b"".join(words), np.uint8)
    slots = np.zeros(_SLOTS, np.int32)
    _fill_slots(letters, ends, slots)
    rows = _read_rows(file)
    file.seek(1 + 2 * 8, 1)
    return LanguageModel(
        labels=tuple(label.decode().removeprefix("__label__") for label, _ in labels),
        letters=letters,
        starts=ends,
        slots=slots,
        rows=rows,
        row_of_bucket=row_of_bucket,
        children=_join_labels([count for _, count in labels]),
        nodes=_read(file, "<f4", _LABELS * _SIZE).reshape(-1, _SIZE),
    )


def _read(file: BytesIO, kind: str, count: int) -> npt.NDArray[Any]:
    return np.frombuffer(file.read(count * np.dtype(kind).itemsize), kind)


def _read_entry(file: BytesIO) -> tuple[bytes, int]:
    """A word or a label, and how often it occurs."""
    at = file.tell()
    word = file.getbuffer()[at : at + 256].tobytes().partition(b"\0")[0]
    file.seek(at + len(word) + 1)
    [count] = _read(file, "<i8", 1).tolist()
    file.seek(1, 1)
    return word, count


def _read_rows(file: BytesIO) -> F32:
    """The rows, of which each is a length and a choice among 256 pairs for every two numbers."""
    count, pairs = _WORDS + _RUNS, _SIZE // _PART
    file.seek(2 + 2 * 8 + 4, 1)
    chosen = _read(file, "u1", count * pairs).reshape(count, pairs)
    file.seek(4 * 4, 1)
    centroids = _read(file, "<f4", _SIZE * _CENTROIDS).reshape(pairs, _CENTROIDS, _PART)
    lengths = _read(file, "u1", count)
    file.seek(4 * 4, 1)
    length = _read(file, "<f4", _CENTROIDS)[lengths]
    parts = [centroids[number][chosen[:, number]] for number in range(pairs)]
    rows: F32 = np.concatenate(parts, axis=1) * length[:, None]
    return rows


def guess(model: LanguageModel, data: U8, starts_N: I64, ends_N: I64) -> tuple[I32, F32]:
    """The likeliest label of data[start:end] of N texts, each as one line, and its probability; -1
    and 0 where no label is likely enough."""
    label_N = np.empty(len(starts_N), np.int32)
    probability_N = np.empty(len(starts_N), np.float32)
    _guess(
        data, starts_N, ends_N, model.letters, model.starts, model.slots, model.rows,
        model.row_of_bucket, model.children, model.nodes, label_N, probability_N,
    )  # fmt: skip
    return label_N, probability_N


def _join_labels(counts: list[int]) -> I32:
    """Children of the nodes of the Huffman tree; `counts` descend. Labels have none, -1."""
    nodes = [*counts]
    children = [(-1, -1)] * len(counts)
    label, node = len(counts) - 1, len(counts)
    while len(nodes) < 2 * len(counts) - 1:
        pair = []
        for _ in range(2):
            if label >= 0 and (node >= len(nodes) or nodes[label] < nodes[node]):
                pair.append(label)
                label -= 1
            else:
                pair.append(node)
                node += 1
        nodes.append(nodes[pair[0]] + nodes[pair[1]])
        children.append((pair[0], pair[1]))
    return np.array(children, np.int32)


@kernel
def _fill_slots(letters: U8, starts_W1: I64, slots: I32) -> None:
    for word in range(len(starts_W1) - 1):
        slot = _find_slot(letters, starts_W1[word], starts_W1[word + 1], letters, starts_W1, slots)
        slots[slot] = word + 1


@kernel
def _find_slot(
    data: U8, start: int, end: int, letters: U8, starts_W1: I64, slots: I32
) -> np.uint32:
    """The slot that holds the word data[start:end], or the free one where it belongs."""
    value = _OFFSET
    for i in range(start, end):
        value = _absorb(value, data[i])
    mask = np.uint32(len(slots) - 1)
    slot = value & mask
    while slots[slot]:
        word = slots[slot] - 1
        first, size = starts_W1[word], starts_W1[word + 1] - starts_W1[word]
        if size == end - start and _is_equal(data, start, letters, first, size):
            break
        slot = (slot + np.uint32(1)) & mask
    return slot


@kernel
def _absorb(value: np.uint32, byte: np.uint8) -> np.uint32:
    """A step of fastText's hash, FNV-1a over signed bytes."""
    wide = np.uint32(byte) | (_SIGN if byte & _CONTINUES else np.uint32(0))
    return np.uint32((value ^ wide) * _PRIME)


@kernel
def _is_equal(one: U8, start: int, other: U8, other_start: int, size: int) -> bool:
    """Whether as many bytes of two arrays are the same."""
    same = 0
    while same < size and one[start + same] == other[other_start + same]:
        same += 1
    return same == size


@kernel
def _guess(
    data: U8,
    starts_N: I64,
    ends_N: I64,
    letters: U8,
    starts_W1: I64,
    slots: I32,
    rows: F32,
    row_of_bucket: U16,
    children: I32,
    nodes: F32,
    label_N: I32,
    probability_N: F32,
) -> None:
    longest = 0
    for text in range(len(starts_N)):
        longest = max(longest, ends_N[text] - starts_N[text])
    word, chosen = np.empty(longest + 2, np.uint8), np.empty(5 * longest + 8, np.uint16)
    vector, stack = np.empty(_SIZE, np.float32), np.empty(len(children), np.int32)
    scores = np.empty(len(children), np.float32)
    for text in range(len(starts_N)):
        start, end = starts_N[text], ends_N[text]
        count = _choose_rows(
            data, start, end, letters, starts_W1, slots, row_of_bucket, word, chosen
        )
        _mean(rows, chosen[:count], vector)
        label, score = _best_label(children, nodes, vector, stack, scores)
        label_N[text], probability_N[text] = label, math.exp(score) if label >= 0 else 0


@kernel
def _choose_rows(
    data: U8,
    start: int,
    end: int,
    letters: U8,
    starts_W1: I64,
    slots: I32,
    row_of_bucket: U16,
    word: U8,
    chosen: U16,
) -> int:
    """Fill `chosen` with the rows of a text, in order; returns how many there are."""
    count, at = 0, start
    word[0] = _BEGIN
    while at < end:
        size = 0
        while at < end and not _IS_SPACE[data[at]]:
            size += 1
            word[size] = data[at]
            at += 1
        at += 1
        if not size:
            continue
        known = slots[_find_slot(word, 1, size + 1, letters, starts_W1, slots)]
        if known == 1:  # the word `</s>`, which ends a line wherever it stands
            chosen[count] = 0
            return count + 1
        if known:
            chosen[count] = known - 1
            count += 1
        elif size >= len(_LABEL) and _is_equal(word, 1, _LABEL, 0, len(_LABEL)):
            continue  # as labels do in the files that train a model
        word[size + 1] = _END
        count = _choose_runs(word, size + 2, row_of_bucket, chosen, count)
    chosen[count] = 0
    return count + 1


@kernel
def _choose_runs(word: U8, size: int, row_of_bucket: U16, chosen: U16, count: int) -> int:
    """Append the rows of the runs of word[:size]."""
    for first in range(size):
        if (word[first] & _TOP_TWO) == _CONTINUES:
            continue
        value, at, characters = _OFFSET, first, 0
        while at < size and characters < _LONGEST:
            value = _absorb(value, word[at])
            at += 1
            while at < size and (word[at] & _TOP_TWO) == _CONTINUES:
                value = _absorb(value, word[at])
                at += 1
            characters += 1
            if characters >= _SHORTEST:
                row = row_of_bucket[value % _BUCKETS]
                chosen[count] = row
                count += row != _PRUNED
    return count


@kernel
def _mean(rows: F32, chosen: U16, vector: F32) -> None:
    vector[:] = 0
    for row in chosen:
        for i in range(_SIZE):
            vector[i] += rows[row, i]
    factor = np.float32(1.0 / len(chosen))
    for i in range(_SIZE):
        vector[i] *= factor


@kernel
def _best_label(
    children: I32, nodes: F32, vector: F32, stack: I32, scores: F32
) -> tuple[int, np.float32]:
    """The likeliest label and the log of its probability: the tree from its root, left before
    right, without branches that are less likely than the best label so far. -1: none is likely
    enough."""
    best, highest, depth = -1, np.float32(0), 1
    stack[0], scores[0] = len(children) - 1, 0
    while depth:
        depth -= 1
        node, score = stack[depth], scores[depth]
        if score < _LEAST or (best >= 0 and score < highest):
            continue
        if children[node, 0] < 0:
            best, highest = node, score
            continue
        product, vector_of_node = np.float32(0), nodes[node - len(nodes)]
        for i in range(_SIZE):
            product += vector_of_node[i] * vector[i]
        right = np.float32(1.0 / np.float32(np.float32(1) + math.exp(-product)))
        for side, chance in enumerate((right, np.float32(1.0 - np.float64(right)))):
            stack[depth] = children[node, 1 - side]
            scores[depth] = score + np.float32(math.log(np.float64(chance) + 1e-5))
            depth += 1
    return best, highest
