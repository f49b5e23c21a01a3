"""Real text without replicas, for inputs as large as disks allow: the files of unpacked packages.

    apt-get download PACKAGES... && for p in *.deb; do dpkg-deb -x $p tree; done
    python -m benchmarks.common.gather tree --out FOLDER --megabytes 1000

Every file that is UTF-8 text (`.gz` and `.dz` are unpacked, of HTML only the words count) makes
documents of about `--longest` characters, cut at empty lines. Files whose bytes came before are
left out, as are documents under 200 characters. Files are taken in an order drawn by a hash of
their path, so that a smaller corpus is a sample of a larger one.
"""

import argparse
import gzip
import hashlib
import html
import re
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common.corpus import text_bytes, write_documents

SHARD_BYTES = 32_000_000
SHORTEST = 200
_LARGEST_FILE = 64 << 20
_MARKUP = re.compile(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>")
_BLANK = re.compile(r"\n[ \t]*\n\s*")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--longest", type=int, default=16_000, metavar="CHARACTERS")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    documents = gather(options.trees, options.longest)
    left = options.megabytes * 1e6
    for number in count():
        shard = list(_take(documents, min(SHARD_BYTES, left)))
        if not shard:
            break
        left -= write_documents(options.out / f"{number:04}.jsonl.zst", shard)


def gather(trees: list[Path], longest: int) -> Iterator[dict[str, Any]]:
    """The documents of all files below these folders."""
    files = [path for tree in trees for path in tree.rglob("*") if path.is_file()]
    files = [path for path in files if not path.is_symlink()]
    seen: set[bytes] = set()
    for path in sorted(files, key=lambda path: _digest(str(path).encode())):
        try:
            name, data = _read(path)
        except (OSError, EOFError, zlib.error):  # not what its name says
            continue
        if (digest := _digest(data)) in seen or b"\0" in data[:4096]:
            continue
        seen.add(digest)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if name.endswith((".html", ".htm", ".xhtml")):
            text = html.unescape(_MARKUP.sub("", text))
        yield from _documents(name, text, longest)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _read(path: Path) -> tuple[str, bytes]:
    """Name and bytes of a file."""
    if path.suffix in (".gz", ".dz"):
        with gzip.open(path) as unpacked:
            return path.stem, unpacked.read(_LARGEST_FILE)
    with path.open("rb") as file:
        return path.name, file.read(_LARGEST_FILE)


def _documents(name: str, text: str, longest: int) -> Iterator[dict[str, Any]]:
    """Consecutive pieces of a text that end at empty lines, where there are any."""
    parts, size = [""], 0
    for part in _BLANK.split(text):
        if size and size + len(part) > longest:
            yield from _long_enough(name, parts)
            parts, size = [], 0
        parts.append(part[:longest])
        size += len(part)
    yield from _long_enough(name, parts)


def _long_enough(name: str, parts: list[str]) -> Iterator[dict[str, Any]]:
    text = "\n\n".join(parts).strip()
    if len(text) >= SHORTEST:
        yield {"text": text, "meta": {"file": name}}


def _take(documents: Iterator[dict[str, Any]], most: float) -> Iterator[dict[str, Any]]:
    while most > 0 and (document := next(documents, None)):
        most -= text_bytes(document)
        yield document


if __name__ == "__main__":
    main()
