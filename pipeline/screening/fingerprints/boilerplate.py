"""Texts that stand in many books and are part of none, as hashes of their words.

`boilerplate.arrow` holds the Project Gutenberg licence in several wordings, and common licences of
software and documents. To make it anew, with other texts if wanted (plain UTF-8 files):

    python -m pipeline.screening.fingerprints.boilerplate FILES...
"""

import sys
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import pyarrow as pa

from dedup.arrays import U64
from dedup.text import join_texts
from pipeline.core import storage
from pipeline.screening.fingerprints.index import pack_words, unpack_words
from pipeline.screening.fingerprints.words import words_of

FILE = "boilerplate.arrow"
_SCHEMA = pa.schema([
    ("name", pa.string()), ("words", pa.uint32()), ("vocabulary", pa.large_binary()),
    ("numbers", pa.large_binary()),
])  # fmt: skip


@cache
def shipped_boilerplate() -> tuple[U64, ...]:
    """The words of each text."""
    data = (resources.files(__package__ or "") / FILE).read_bytes()
    rows = pa.ipc.open_file(pa.BufferReader(data)).read_all().to_pylist()
    return tuple(unpack_words(row["vocabulary"], row["numbers"], row["words"]) for row in rows)


def pack_boilerplate(texts: Sequence[tuple[str, str]]) -> bytes:
    """An Arrow file of (name, text)."""
    words = [words_of(join_texts([text])).hashes for _, text in texts]
    stored = [pack_words(one) for one in words]
    columns = [
        [name for name, _ in texts], [len(one) for one in words],
        [vocabulary for vocabulary, _ in stored], [numbers for _, numbers in stored],
    ]  # fmt: skip
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _SCHEMA, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_table(pa.table(arrays, schema=_SCHEMA))
    return bytes(sink.getvalue())


if __name__ == "__main__":
    read = [(Path(file).name, Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:]]
    storage.publish(Path(__file__).with_name(FILE), pack_boilerplate(read))
