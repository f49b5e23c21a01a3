"""Public names that are imported at their first use."""

import pytest

from pipeline.core import export_lazily


def test_names_and_modules() -> None:
    get, listed = export_lazily("json", ["b", "a"], {".decoder": "JSONDecoder", ".tool": ""})
    assert get("JSONDecoder").__name__ == "JSONDecoder"
    assert get("tool").__name__ == "json.tool"
    assert listed() == ["a", "b"]
    with pytest.raises(AttributeError, match="module 'json' has no attribute 'dumps'"):
        get("dumps")
