"""Writes docs/configuration.md from the config models, so that it cannot drift from the code.

python docs/make_configuration.py          # write the file
python docs/make_configuration.py --check  # exit 1 when it is out of date
"""

import enum
import json
import re
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, JsonValue
from pydantic.fields import FieldInfo

from pipeline.config import model as config_model
from pipeline.config.prep import Config
from pipeline.screening.policy.rules import Policy

TARGET = Path(__file__).with_name("configuration.md")

UNITS = {
    "read.task_bytes": "bytes", "read.max_document_bytes": "bytes", "read.max_bad_share": "share",
    "seed": "", "tokenize.eos": "", "tokenize.bos": "", "read.max_file_bytes": "bytes",
    "read.max_ratio": "bytes per byte on disk", "clean.min_length": "characters",
    "pack.max_sequence_length": "tokens",
    "dedup.size": "shingle units", "dedup.bands": "", "dedup.rows": "",
    "dedup.permutations": "", "dedup.threshold": "Jaccard similarity",
    "dedup.max_source_share": "share", "dedup.memory": "bytes",
    "dedup.substrings.min_bytes": "bytes of UTF-8",
    "dedup.containment.min_share": "share",
    "lines.min_characters": "characters", "lines.min_documents": "documents",
    "screen.quarantine_days": "days",
    "decontaminate.n": "words", "decontaminate.min_words": "words",
    "decontaminate.min_overlap": "share",
    "pack.validation_share": "share", "pack.bucket_tokens": "tokens", "hdf5.shard_bytes": "bytes",
    "hdf5.shard_sequences": "rows", "splits": "share", "mixture.epochs": "epochs",
    "mixture.weights": "", "mixture.default": "", "mixture.tokens": "tokens",
    "mixture.max_epochs": "epochs", "mixture.cluster_weights": "copies",
    "propagate.min_jaccard": "Jaccard similarity", "memory": "bytes",
    "workers": "processes", "minimum": "processes", "workers_per_job": "processes",
    "patience": "minutes",
}  # fmt: skip
"""Unit of every numeric field, by dotted key or by its last part; "" for a plain number."""

NUMBERS = (int, float)
NAMES = {
    int: "integer", float: "number", str: "text", bool: "true or false", Path: "path",
    JsonValue: "any value",
}  # fmt: skip
Seen = set[tuple[str, type[BaseModel]]]  # by section
MOST_COUNTED = 1 << 31
"""The limit of every count of `train`, which no sensible value comes near, so no row names it."""
SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}

HEAD = """\
# Configuration

Every key of the prep config and of a policy. This file is generated from the config models; after
changing one, run `python docs/make_configuration.py`
(`tests/docs/test_docs.py` fails while it is out of date).

Both are strict YAML: no tags, anchors, aliases or merge keys, no duplicate or unknown keys,
one document, at most 1 MiB and 50 levels. Plain scalars follow YAML 1.2, so only `true` and
`false` are booleans, and `no` or `012` are text. There is no silent conversion: a number in quotes
is not a number. An error is one line with file, line, dotted key, what was expected and, for a
misspelt key, a suggestion.

Sizes in bytes are integers or text with a unit, such as `64 MiB` (B, KiB, MiB, GiB, TiB, kB, MB,
GB, TB). Shares lie between 0 and 1 and may be written in per cent, such as `0.17 %`.
"""

PREP = """\
## The prep config

`prep run CONFIG` takes a file or the name of a shipped config: {prep}.
Any key can be changed on the command line with `--set`, list items by number:

<!-- not run: /data/pile is yours -->

    prep run pile --set inputs.0.path=/data/pile --set pack.max_sequence_length=1024

Relative paths start at the directory of the config file, those of `--set` at the working directory.
All mistakes of a file are reported at once, a line each; those of keys that contradict one another
once no other is left. `name` may be left out: it defaults to the file's name. `inputs` needs at
least one entry, and their names must differ.
"""

POLICY = """\
## A policy

What `screen.policy` names; the shipped one is `pipeline/screening/rules/policy.yaml`. The language
is explained in [policy.md](policy.md).
"""

PARAMS = """\
## params.yaml

The config of a training run has [a page of its own](train_configuration.md).
"""


def document() -> str:
    """The whole of docs/configuration.md."""
    root = TARGET.parents[1] / "configs"
    shipped = ", ".join(f"`{path.stem}`" for path in sorted((root / "prep").glob("*.yaml")))
    parts = [
        HEAD, PREP.format(prep=shipped), *sections(Config), POLICY, *sections(Policy), PARAMS,
    ]  # fmt: skip
    return "\n".join(parts)


def sections(
    model: type[BaseModel],
    prefix: str = "",
    title: str = "Top level",
    seen: Seen | None = None,
    common: Sequence[str] = (),
) -> Iterator[str]:
    """A table of the model's own fields, then one for every model inside it, each once a section.

    `common`: fields that the table above has in the same words. A model inside that the model
    extends has a table already.
    """
    seen = set() if seen is None else seen
    fields = config_model.described_fields(model).items()
    own = [(n, f) for n, f in fields if n not in common]
    plain = [row(f"{prefix}{n}", f) for n, f in own if prefix or not models_in(f.annotation)]
    if plain:
        also = f" Also {', '.join(f'`{n}`' for n in common)}, as above." if common else ""
        yield f"### {title}\n\n{' '.join((model.__doc__ or '').split())}{also}\n"
        yield "| key | type | unit | default | meaning |\n| --- | --- | --- | --- | --- |"
        yield "\n".join(plain) + "\n"
    for name, info in fields:
        inner = [one for one in models_in(info.annotation) if not issubclass(model, one)]
        shown = f"{prefix}{name}{of_each(info.annotation)}"
        shared = () if prefix else in_all(inner)
        for place, one in enumerate(inner):
            section = shown.partition(".")[0]
            if (section, one) not in seen:
                seen.add((section, one))
                needed = "required" if info.is_required() else "optional"
                words = name_of(one) if prefix or len(inner) > 1 else needed
                yield from sections(
                    one, f"{shown}.", f"`{shown}` ({words})", seen, shared if place else ()
                )


def in_all(models: Sequence[type[BaseModel]]) -> list[str]:
    """Fields that all of several models have, the same in every word."""
    first, *others = models or [BaseModel]
    return [
        name
        for name, info in config_model.described_fields(first).items()
        if all(name in (fields := config_model.described_fields(other))
               and row(name, fields[name]) == row(name, info) for other in others)
    ]  # fmt: skip


def row(dotted: str, info: FieldInfo) -> str:
    """One line of a table."""
    only = get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1
    meaning = info.description or ("the only value so far" if only else "see below")
    cells = [f"`{dotted}`", kind_of(info), unit_of(dotted, info), default_of(info), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def kind_of(info: FieldInfo) -> str:
    """The type and its limits in words, such as `integer ≥ 1`."""
    return words_of(info.annotation, list(info.metadata))


def words_of(annotation: Any, metadata: list[Any]) -> str:
    """An annotation in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words_of(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(a).strip(chr(34))}`" for a in arguments)
    if origin in (Union, types.UnionType):
        words = [words_of(a, metadata) for a in arguments if a is not type(None)]
        words += ["`null`"] if type(None) in arguments else []
        return " or ".join(dict.fromkeys(words))
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return f"list of {len(arguments)} {words_of(arguments[0], [])}s"
        return f"list of {words_of(arguments[0], [])}{limits(metadata)}"
    if origin is dict:
        return f"mapping of {' to '.join(words_of(argument, []) for argument in arguments)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | enum.Enum):
        return name_of(annotation)
    if any(isinstance(m, BeforeValidator) and m.func is config_model._bytes for m in metadata):
        return f"size{limits(metadata)}"
    if any(isinstance(m, BeforeValidator) and m.func is config_model._share for m in metadata):
        return f"share{limits(metadata)}"
    return NAMES[annotation] + limits(metadata)


def name_of(kind: type) -> str:
    """The name of a model; where a key chooses one, what the file says: AdamW for AdamWConfig."""
    keys = {"optimizer_type", "scheduler", "algorithm"}
    chosen = not keys.isdisjoint(getattr(kind, "model_fields", ()))
    return re.sub("(Config|Scheduler)$", "", kind.__name__) if chosen else kind.__name__


def limits(metadata: list[Any]) -> str:
    """Limits among the field's metadata in words; the tightest of each kind."""
    flat = [n for m in metadata for n in (m.metadata if isinstance(m, FieldInfo) else [m])]
    found: dict[str, Any] = {}
    for limit in flat:
        for kind, sign in SIGNS.items():
            if isinstance(limit, kind):
                value = getattr(limit, kind.__name__.lower())
                tightest = max if sign in ("≥", ">") else min
                found[sign] = tightest(found.get(sign, value), value)
    words = [f" {sign} {number(value)}" for sign, value in found.items() if value != MOST_COUNTED]
    pattern = next((p for m in flat if (p := getattr(m, "pattern", None))), None)
    words += [f" matching `{pattern}`"] if pattern else []
    words += [f", at least {m.min_length}" for m in flat if isinstance(m, MinLen)]
    return "".join(words)


def number(value: float) -> str:
    """A limit, large powers of two as such."""
    if value >= 1 << 10 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}"


def unit_of(dotted: str, info: FieldInfo) -> str:
    """The unit that marks the field, or that in UNITS; a number with neither is an error."""
    if not has_number(info.annotation):
        return "–"
    marks = [mark.words for mark in info.metadata if isinstance(mark, config_model.Unit)]
    if marks:
        return marks[0]
    key = dotted.replace("[]", "")
    return (UNITS[key] if key in UNITS else UNITS[key.rpartition(".")[2]]) or "–"


def has_number(annotation: Any) -> bool:
    """Whether a plain number can stand there."""
    if get_origin(annotation) is Literal:
        return False
    return annotation in NUMBERS or any(has_number(a) for a in get_args(annotation))


def default_of(info: FieldInfo) -> str:
    """The default as it would stand in the file."""
    if info.is_required():
        return "required"
    value = info.default
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        for unit, size in (("GB", 10**9), ("GiB", 1 << 30), ("MiB", 1 << 20)):
            if value % size == 0 and any(isinstance(m, BeforeValidator) for m in info.metadata):
                return f"`{value // size} {unit}`"
    return f"`{json.dumps(value)}`"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models an annotation holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in get_args(annotation) for m in models_in(argument)]


def of_each(annotation: Any) -> str:
    """What stands between the key of models and theirs: where they are in a list, or by name."""
    inside = (of_each(argument) for argument in get_args(annotation))
    own = {tuple: "[]", dict: ".NAME"}.get(get_origin(annotation) or annotation, "")
    return own or next(filter(None, inside), "")


def write_or_compare(target: Path, text: str) -> int:
    """Write the file; with --check, exit code 1 when it is out of date."""
    if "--check" in sys.argv[1:]:
        return 0 if target.read_text(encoding="utf-8") == text else 1
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(write_or_compare(TARGET, document()))
