"""Write the tables of stages in design.md, from `pipeline.runs.catalogue`.

python docs/make_stages.py
"""

import re
from pathlib import Path

from pipeline.runs.catalogue import INTERMEDIATE_DIRECTORIES, cause_table, stage_table

PAGE = Path(__file__).parent / "design.md"


def document() -> str:
    """The page with its tables as the code has them."""
    intermediates = ", ".join(f"`{name}/`" for name in sorted(INTERMEDIATE_DIRECTORIES)) + "."
    page = PAGE.read_text(encoding="utf-8")
    tables = {"stages": stage_table(), "causes": cause_table(), "intermediates": intermediates}
    for name, text in tables.items():
        marked = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
        page = marked.sub(rf"\1\n{text}\n\n\2", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(document(), encoding="utf-8")
