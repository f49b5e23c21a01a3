"""`prep convert` on the terminal: what would be done, and what was."""

from dataclasses import replace
from typing import Any

from pipeline.convert.estimate import estimate
from pipeline.convert.inputs import detect
from pipeline.convert.options import ConvertOptions
from pipeline.convert.plan import plan_of, splits_to_convert
from pipeline.convert.run import convert
from pipeline.convert.saved import SavedRows, convert_saved, saved_rows
from pipeline.convert.stream import LOSSES
from pipeline.core.figures import format_bytes
from pipeline.core.words import pluralise
from pipeline.terminal import print_facts, print_json, print_line

_COUNTS = {
    "documents": ("document", ""),
    "tokens": ("token", ""),
    "n_examples": ("row", ""),
    "text_bytes": ("byte", " of text"),
}


def run_and_show(options: ConvertOptions, dry_run: bool, as_json: bool) -> None:
    """Convert, or only look, and print the outcome."""
    inputs = detect(options.inputs, options.kind, options.text_key)
    if inputs.kind == "dataset" and options.to == "hdf5" and options.length is None:
        return _saved(saved_rows(inputs), options, dry_run, as_json)
    parts = [options]
    if options.split is None and (splits := splits_to_convert(options)):
        parts = [replace(options, split=name, out=options.out / name) for name in splits]
    if as_json:
        told = [_as_json(part, dry_run) for part in parts]
        return print_json(told[0] if parts == [options] else dict(zip(splits, told, strict=True)))
    for part in parts:
        _run_and_show(part, dry_run)
    return None


def _as_json(options: ConvertOptions, dry_run: bool) -> dict[str, Any]:
    plan = plan_of(options)
    if dry_run:
        return estimate(plan, options)
    summary = convert(plan, options.out)
    told = {"directory": str(summary.directory), "up_to_date": summary.up_to_date}
    return {**told, **summary.facts}


def _run_and_show(options: ConvertOptions, dry_run: bool) -> None:
    plan = plan_of(options)
    if dry_run:
        return print_facts(_words(estimate(plan, options)))
    for note in plan.notes:
        print_line(f"note: {note}")
    summary = convert(plan, options.out)
    if summary.up_to_date:
        print_line(f"{options.out}/ was up to date")
    return _show(summary.facts, options)


def _saved(rows: SavedRows, options: ConvertOptions, dry_run: bool, as_json: bool) -> None:
    facts: dict[str, Any] = {"features": list(rows.columns), "left_out": list(rows.left_out)}
    if dry_run:
        facts = {"rows": len(rows.dataset), **facts}
        return print_json(facts) if as_json else print_facts(_words(facts))
    made = convert_saved(rows, options)
    if as_json:
        return print_json({"directory": str(options.out), **facts, **made})
    if rows.left_out:
        print_line(
            f"note: columns left out, because they hold no numbers: {', '.join(rows.left_out)}"
        )
    return _show(made, options)


def _show(facts: dict[str, Any], options: ConvertOptions) -> None:
    counts = ", ".join(
        f"{pluralise(facts[key], noun)}{rest}"
        for key, (noun, rest) in _COUNTS.items()
        if facts.get(key) is not None and (key != "n_examples" or options.to == "hdf5")
    )
    print_line(f"{facts['from']} -> {options.to}: {counts}")
    for word, count in facts["lost"].items():
        noun, rest = LOSSES[word]
        print_line(f"lost: {pluralise(count, noun)}{rest}")
    if facts.get("documents_not_utf8"):
        broken = pluralise(facts["documents_not_utf8"], "document")
        print_line(
            f"note: not UTF-8: {broken}; their ids are in `tokens` next to a text with U+FFFD"
        )
    if facts.get("documents_without_eos"):
        endless = pluralise(facts["documents_without_eos"], "document")
        print_line(f"note: no EOS at the end of {endless}; converted back, they would end with one")
    print_line(f"outputs: {options.out}/ ({pluralise(facts['shards'], 'shard')})")


def _words(shown: dict[str, Any]) -> list[tuple[str, str]]:
    def word(key: str, value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        if key.endswith("_bytes"):
            return format_bytes(value)
        return f"{value:,}" if isinstance(value, int) else str(value)

    return [
        (key.removesuffix("_bytes").replace("_", " "), word(key, value))
        for key, value in shown.items()
        if value not in (None, [], "")
    ]
