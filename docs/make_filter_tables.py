"""Writes the tables of rules in docs/filters.md from the rules' declarations.

python docs/make_filter_tables.py          # write them
python docs/make_filter_tables.py --check  # exit 1 when they are out of date
"""

import re
import sys
from pathlib import Path

from pydantic import BaseModel

from pipeline.config.filters import C4Config, GopherConfig, GopherRepetitionConfig, LanguageConfig
from pipeline.filters.rule import Rule
from pipeline.filters.rules import FAMILIES

TARGET = Path(__file__).with_name("filters.md")
TABLE = re.compile(r"^\| reason \|.*\n\| --- .*\n(?:\|.*\n)*", re.M)
HEAD = "| reason | looks at | allowed |\n| --- | --- | --- |\n"
SETTINGS: dict[str, type[BaseModel]] = {
    "language": LanguageConfig, "gopher": GopherConfig, "repetition": GopherRepetitionConfig,
    "c4": C4Config,
}  # fmt: skip


def document() -> str:
    """The whole of docs/filters.md, its tables of rules made again: one a family, in order."""
    tables = iter(FAMILIES)

    def made(found: re.Match[str]) -> str:
        family = next(tables)
        rows = (
            f"| `{family.FAMILY}_{rule.name}` | {rule.looks_at} "
            f"| {rule.allowed or limits(rule, SETTINGS[family.FAMILY])} |\n"
            for rule in family.RULES
        )
        return HEAD + "".join(rows)

    text = TABLE.sub(made, TARGET.read_text(encoding="utf-8"))
    assert next(tables, None) is None, "a family of rules has no table in docs/filters.md"
    return text


def limits(rule: Rule, settings: type[BaseModel]) -> str:
    """What the defaults allow, such as `50 to 100,000`."""
    low, high = (
        f"{settings.model_fields[key].default:,}" if key else "" for key in (rule.least, rule.most)
    )
    if low and high:
        return f"{low} to {high}"
    return f"≥ {low}" if low else f"≤ {high}"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(document() != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(document(), encoding="utf-8")
