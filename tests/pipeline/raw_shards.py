"""Raw shards in every format, with duplicates inside and across them, for `prep dedup`."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import zstd

Prep = Callable[..., Any]
BOM = b"\xef\xbb\xbf"


def line(text: str, **fields: Any) -> bytes:
    """A record with fields and spacing that no writer of ours would choose."""
    return json.dumps(
        {**fields, "text": text, "z": [1.50, {"b": 2}]}, separators=(" ,", " : ")
    ).encode()


def near(text: str) -> str:
    return text.rpartition(" ")[0] + " elsewhere."


class Raw:
    """A directory of raw shards in every format, with duplicates inside and across them."""

    def __init__(self, root: Path, prose: Callable[..., str]) -> None:
        self.root = root
        family, copies = prose(1, 300), [prose(n, 120) for n in (2, 3)]
        texts = [prose(100 + n, 60 + n) for n in range(24)]
        meta = {"meta": {"url": "https://example.org/a", "pile_set_name": "Wiki"}}
        self.plain = [
            BOM + line(texts[0], **meta), b"", line(family), b"  ", line("", id=7), line(copies[0]),
            b'{"text": "cut off', line(texts[1]) + b"\r", line(copies[0] + "!"),
            line(texts[2], meta={"url": "https://example.org/a"}), line("tiny"), line(near(family)),
        ]  # fmt: skip
        self.zst = [line(t, lang="en") for t in (*texts[3:9], copies[0], near(family), copies[1])]
        self.gz = [line(t) for t in (copies[1], *texts[9:14], "schÃ¶n &amp; gut")]
        self.rows = pa.table(
            {
                "id": pa.array(range(12), pa.int16()),
                "text": pa.array([*texts[14:20], copies[1], None, family, *texts[20:23]]),
                "tags": pa.array([["a", None], [], None] * 4, pa.list_(pa.string())),
                "nested": pa.array([{"x": n, "y": b"\xff"} for n in range(12)]),
                "kind": pa.array(["u", "v", "u"] * 4).dictionary_encode(),
            }
        ).replace_schema_metadata({"origin": "a test"})
        self.write()

    def write(self) -> None:
        (self.root / "sub").mkdir(parents=True)
        (self.root / "a.jsonl").write_bytes(b"\n".join(self.plain))
        half = b"\n".join(self.zst[:4]) + b"\n"
        rest = b"\n".join(self.zst[4:]) + b"\n"
        (self.root / "b.jsonl.zst").write_bytes(zstd.compress(half) + zstd.compress(rest))
        (self.root / "sub/c.jsonl.gz").write_bytes(
            gzip.compress(b"\n".join(self.gz) + b"\n", mtime=0)
        )
        pq.write_table(self.rows, self.root / "sub/d.parquet", row_group_size=5)
        (self.root / "README.md").write_text("passed over")
        (self.root / ".hidden.jsonl").write_bytes(b"not read\n")

    @property
    def files(self) -> list[Path]:
        return [
            self.root / p for p in ("a.jsonl", "b.jsonl.zst", "sub/c.jsonl.gz", "sub/d.parquet")
        ]


OPTIONS = ("--workers", 0, "--max-bad-share", "20 %")
