"""`prep convert --dry-run`: what would be read and written, and about how large it gets."""

from typing import Any

from pipeline.convert.options import ConvertOptions
from pipeline.convert.plan import ConvertPlan

_TEXT_PER_TOKEN = 4.3
"""Bytes of English in a GPT-2 token."""
_PACKED = {"gzip": 1.4, "gzip-shuffle": 1.25, "none": 12.0}
"""Bytes of a `sample` file for one token of English."""
_SHOWN = 5


def estimate(plan: ConvertPlan, options: ConvertOptions) -> dict[str, Any]:
    """Plain data for the terminal or JSON; figures named `about_` are estimates."""
    facts = plan.source.facts
    files = [path for path, _ in facts.files]
    more = [f"and {len(files) - _SHOWN} more"] if len(files) > _SHOWN else []
    tokens, exact = _tokens(plan)
    settings = plan.settings
    return {
        "from": facts.kind,
        "files": len(files),
        "input_bytes": facts.bytes,
        "inputs": [*files[:_SHOWN], *more],
        "to": options.to,
        "out": str(options.out),
        "max_sequence_length": settings.get("max_sequence_length") or facts.max_sequence_length,
        "rows": facts.items if facts.unit == "rows" else None,
        "tokens": tokens if exact else None,
        "about_tokens": None if exact else tokens,
        "about_output_bytes": _size(plan, options, tokens),
        "notes": list(plan.notes),
    }


def _tokens(plan: ConvertPlan) -> tuple[int, bool]:
    """(number, whether it is exact)."""
    facts = plan.source.facts
    if facts.unit == "tokens" and facts.items is not None:
        return facts.items, True
    if facts.unit == "rows" and facts.items is not None and facts.max_sequence_length:
        return facts.items * facts.max_sequence_length, False
    per_byte = {"text": 1 / _TEXT_PER_TOKEN, "HDF5 (corpus)": 0.7}.get(facts.kind, 1 / 1.4)
    size = facts.bytes
    files = getattr(plan.source, "files", None)
    if facts.kind == "text" and files is not None:
        size = sum(file.text_estimate for file in files)
    return int(size * per_byte), False


def _size(plan: ConvertPlan, options: ConvertOptions, tokens: int) -> int:
    width = plan.source.facts.vocabulary.dtype.itemsize
    per_token = {
        "hdf5": _PACKED[options.compression],
        "corpus": width * (1.0 if options.compression == "none" else 0.7),
        "bin": float(width),
        "jsonl": _TEXT_PER_TOKEN * 1.03,
        "jsonl.zst": _TEXT_PER_TOKEN * 0.4,
        "parquet": _TEXT_PER_TOKEN * 0.45,
    }[options.to]
    return int(tokens * per_token)
