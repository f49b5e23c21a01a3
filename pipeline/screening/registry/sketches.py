"""Sketches kept with a registry, and exchanged.

An exchange file is an Arrow file with a row per work: its DESCRIPTION and a sketch, no text. The
salt is handed over apart; a registry keeps it with the sketch.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.hashes import hash_bytes, read_verified
from pipeline.screening.registry.entries import ListEntry
from pipeline.screening.registry.works import TIERS, Work

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.sketch import Sketch

SKETCHES = "sketches"
FORMAT = "wafermill sketches 1"
SALT_BYTES = 16
SMALL = 5000
"""Words of a text below which a sketch without a salt is warned of: phrases can be guessed."""

DESCRIPTION = ("title_raw", "subtitle", "authors", "publisher", "claimant", "reg_no", "reg_date",
               "pub_date", "isbn13", "asin", "doi", "lccn", "catalog_url", "jurisdiction", "scope",
               "contact", "tier")  # fmt: skip
"""Fields of a work that go into an exchange file; lists parted by `; `."""


def make_sketch(text: str, tier: str, salt: bytes = b"") -> "Sketch":
    """The sketch of a text at the density of its tier."""
    from pipeline.screening.fingerprints.sketch import EXCERPT_S, WHOLE_BOOK_S, sketch_text

    return sketch_text(text, EXCERPT_S if tier == "excerpt" else WHOLE_BOOK_S, salt=salt or None)


def read_salt(path: Path) -> bytes:
    """The salt in a file. Raises ConfigError when it cannot be read or is short."""
    try:
        salt = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--salt-file {path}: cannot read: {error.strerror}") from error
    if not SALT_BYTES <= len(salt) <= 4096:
        raise ConfigError(
            f"--salt-file {path}: {len(salt)} bytes; expected {SALT_BYTES} random bytes or more, "
            f"as of `head -c {2 * SALT_BYTES} /dev/urandom > FILE`"
        )
    return salt


def make_salt_id(salt: bytes) -> str:
    """What an exchange file says of its salt: enough to tell a wrong one, and no more."""
    digest = hashlib.sha256(b"wafermill salt id\0" + salt).hexdigest()
    return digest[:SALT_BYTES] if salt else ""


def encode_sketch(sketch: "Sketch") -> tuple[str, bytes]:
    """The file that keeps a sketch, salt included: xxh3-128 and bytes."""
    from pipeline.screening.fingerprints.sketch import make_sketch_table

    data = _encode_table(make_sketch_table({"": sketch}))
    return hash_bytes(data), data


def keep_sketch(directory: Path, sketch: "Sketch") -> None:
    """Keep a sketch with a registry, once."""
    digest, data = encode_sketch(sketch)
    if not has_sketch(directory, digest):
        storage.publish(_path(directory, digest), data)


def has_sketch(directory: Path, digest: str) -> bool:
    """Whether a registry keeps the sketch with this hash."""
    return _path(directory, digest).is_file()


def load_sketch(directory: Path, digest: str) -> "Sketch":
    """A kept sketch. Raises IntegrityError when it is missing or damaged."""
    from pipeline.screening.fingerprints.sketch import read_sketches

    path = _path(directory, digest)
    data = read_verified(path, digest)
    try:
        return read_sketches(pa.ipc.open_file(pa.BufferReader(data)).read_all())[""]
    except (pa.ArrowException, OSError, InputError, KeyError) as error:
        raise IntegrityError(f"{path}: not a sketch of this version: {error}") from error


def _encode_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _path(directory: Path, digest: str) -> Path:
    return directory / SKETCHES / f"{digest}.arrow"


def write_exchange(path: Path, works: Sequence[Work], sketches: Mapping[str, "Sketch"]) -> None:
    """Publish an exchange file: a row per work, its sketch under its work_id, without the salt."""
    from pipeline.screening.fingerprints.sketch import NORMALISATION, make_sketch_table

    salts = {sketch.salt for sketch in sketches.values()}
    bare = {work.work_id: replace(sketches[work.work_id], salt=b"") for work in works}
    table = make_sketch_table(bare)
    for name in DESCRIPTION:
        cells = [getattr(work, name) for work in works]
        values = ["; ".join(cell) if isinstance(cell, tuple) else cell for cell in cells]
        table = table.append_column(name, pa.array(values, pa.string()))
    parameters = {
        "format": FORMAT,
        "normalisation": NORMALISATION,
        "k": sorted({sketch.k for sketch in sketches.values()}),
        "s": sorted({sketch.s for sketch in sketches.values()}),
        "salt_id": "".join(map(make_salt_id, salts)),
    }
    table = table.replace_schema_metadata({name: json.dumps(v) for name, v in parameters.items()})
    storage.publish(path, _encode_table(table))


def read_exchange(path: Path, data: bytes, salt: bytes) -> list[tuple[ListEntry, "Sketch"]]:
    """The works of an exchange file with their sketches, salted by `salt` if the file says so.

    The tier follows from how dense a sketch is.

    Raises InputError when it is no exchange file, is damaged, or was made with another salt.
    """
    from pipeline.screening.fingerprints.sketch import EXCERPT_S, find_last_kept, read_sketches

    table, parameters = _read_table(path, data)
    _check_salt(path, str(parameters.get("salt_id", "")), salt)
    try:
        sketches = read_sketches(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if not salt and any(
        len(one) and int(one.hashes.max()) > find_last_kept(one.s) for one in sketches.values()
    ):
        raise InputError(
            f"{path}: its hashes do not fit its parameters; ask its sender for it again"
        )
    rows = table.select([*DESCRIPTION, "work_id"]).to_pylist()
    pairs = []
    for number, row in enumerate(rows, 1):
        sketch = replace(sketches[row.pop("work_id")], salt=salt)
        values = {name: value for name, value in row.items() if value}
        values["tier"] = TIERS[0] if sketch.s <= EXCERPT_S else TIERS[1]
        pairs.append((ListEntry(f"{path.name}:{number}", values), sketch))
    return pairs


def _read_table(path: Path, data: bytes) -> tuple[pa.Table, dict[str, Any]]:
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
        metadata = table.schema.metadata or {}
        parameters = {key.decode(): json.loads(value) for key, value in metadata.items()}
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        problem = escape_text(str(error).splitlines()[0] if str(error) else "", 100)
        raise InputError(f"{path}: not an Arrow file of sketches: {problem}") from error
    missing = [n for n in ("work_id", *DESCRIPTION) if n not in table.column_names]
    wrong = [n for n in DESCRIPTION if n not in missing and table[n].type != pa.string()]
    if parameters.get("format") != FORMAT or missing or wrong:
        problem = escape_text(", ".join([*missing, *wrong]) or "its format", 100)
        raise InputError(
            f"{path}: not a file that `prep registry sketch` of this version writes ({problem})"
        )
    return table, parameters


def _check_salt(path: Path, expected: str, salt: bytes) -> None:
    if make_salt_id(salt) == expected:
        return
    if not expected:
        raise ConfigError(f"{path}: its sketches are not salted; leave out --salt-file")
    if not salt:
        raise ConfigError(
            f"{path}: its sketches are salted; give the file of the salt with --salt-file"
        )
    raise ConfigError(f"{path}: made with another salt than the one in --salt-file")
