"""The two parsers of YAML: libyaml, and the one in Python where it is missing or refuses a text."""

from pathlib import Path

import pytest
import yaml

from pipeline.config.yaml import load_yaml, loads_value
from pipeline.core.errors import ConfigError
from trainer.config.params_file import load_params_yaml

ROOT = Path(__file__).parents[3]
FILES = sorted(
    path
    for room in ("configs", "examples", "pipeline", "tests/trainer")
    for path in (ROOT / room).rglob("*.yaml")
)


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML without libyaml")
def test_both_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"train": load_params_yaml, "trainer": load_params_yaml}
    documents = [load.get(path.parts[len(ROOT.parts) + 1], load_yaml)(path) for path in FILES]
    monkeypatch.delattr(yaml, "CSafeLoader")
    again = [load.get(path.parts[len(ROOT.parts) + 1], load_yaml)(path) for path in FILES]
    assert documents == again and len(FILES) > 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@x", "--set:1: not valid YAML: found character '@' that cannot start any token"),
        ("{a: [1, 2}", "--set:1: not valid YAML: expected ',' or ']', but got '}'"),
        ("a\n\x07", "--set:1: not valid YAML: unacceptable character #x0007"),
        ("{a: " * 200_000, "--set:1: more than 50 nested levels"),
        ("name:\ta", "--set:1: not valid YAML: found character '\\t' that cannot start any token"),
        ("\udcff", "--set:1: not valid YAML: unacceptable character #xdcff"),
    ],
)
def test_messages_name_the_character(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads_value(text)
    assert str(error.value).startswith(message)
