"""The examples of docs/sparsity.md run."""

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "sparsity.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, str(DOCUMENT), "exec"), {})
    if "simulated_speedup" in example:
        assert "simulated speed-up: at most 4.00 x" in capsys.readouterr().out
