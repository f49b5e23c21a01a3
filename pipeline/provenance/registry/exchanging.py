"""The story of `prep registry sketch`: a rightsholder sends the sketch of a work, not the text.

What it is good for and what it gives away stands in docs/registry.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.provenance.registry import sketches, texts
from pipeline.provenance.registry.entries import EntryError, ListEntry, work_of


@dataclass(frozen=True)
class SketchFile:
    """What was written: the file, the work in it, how many words its text has, how many hashes
    stand for them, the parameters, and warnings."""

    out: Path
    work_id: str
    words: int
    hashes: int
    k: int
    s: int
    salted: bool
    warnings: tuple[str, ...]


def sketch_work(
    files: Sequence[Path], out: Path, description: Mapping[str, str], salt: bytes
) -> SketchFile:
    """Write the sketch of one work, whose text is in these files, in their order.

    description: fields of the work, its title and tier among them. Raises InputError for a text
    that cannot be used, ConfigError for a description that cannot be.
    """
    if out.suffix != ".arrow":
        raise ConfigError(f"--out {out}: expected a name that ends in .arrow")
    try:
        incoming = work_of(ListEntry(str(out), description), {})
        text = "\n".join(texts.read_text(path) for path in files)
    except EntryError as refused:
        raise ConfigError(f"cannot describe the work: {refused}") from refused
    except texts.UnusableText as error:
        raise InputError(str(error)) from error
    if incoming.remarks:
        raise ConfigError(f"cannot describe the work: {incoming.remarks[0].text}")
    work = incoming.work
    sketch = sketches.make_sketch(text, work.tier, salt)
    if not len(sketch):
        raise InputError(
            f"{files[0]}: too short for a sketch ({pluralise(sketch.words, 'word')}, "
            f"tier {work.tier})"
        )
    sketches.write_exchange(out, [work], {work.work_id: sketch})
    warnings = _warnings(sketch.words, bool(salt))
    return SketchFile(
        out, work.work_id, sketch.words, len(sketch), sketch.k, sketch.s, bool(salt), warnings
    )


def _warnings(words: int, salted: bool) -> tuple[str, ...]:
    if salted or words >= sketches.SMALL:
        return ()
    return (
        f"a sketch of {words:,} words without a salt: whoever has it can try guessed phrases "
        "against it, and of a short text that can give much away; make it with --salt-file, or "
        "send it only to a recipient who may know the text",
    )
