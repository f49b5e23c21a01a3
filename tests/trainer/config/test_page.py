"""docs/train_configuration.md is what the config models say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_up_to_date():
    path = DOCS / "make_train_configuration.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = (DOCS / "train_configuration.md").read_text(encoding="utf-8")
    assert written == script.document(), "run `python docs/make_train_configuration.py`"
