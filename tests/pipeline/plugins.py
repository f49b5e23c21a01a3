"""Distributions with entry points, as an installer leaves them: `*.dist-info` next to modules."""

import re
from pathlib import Path

EXTENDING = Path(__file__).resolve().parents[2] / "docs/extending.md"


def install(
    site: Path, name: str, entry_points: dict[str, dict[str, str]], modules: dict[str, str]
) -> None:
    """Version 1.0 of a distribution; `entry_points` are by group and name."""
    about = site / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in named.items())])
        for group, named in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(sections))
    for path, code in modules.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(code)


def example(section: str) -> str:
    """The Python code of a section of docs/extending.md."""
    page = EXTENDING.read_text("utf-8")
    code = re.search(r"^```python\n(.*?)^```$", page[page.index(section) :], re.M | re.S)
    assert code
    return code[1]
