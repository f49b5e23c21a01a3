"""Values of the command line that are no YAML: one line that names the character and the option."""

import pytest

from pipeline.config.yaml import loads_value
from pipeline.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@x", "--memory:1: not valid YAML: found character '@' that cannot start any token"),
        ("{a: [1, 2}", "--memory:1: not valid YAML: expected ',' or ']', but got '}'"),
        ("a\n\x07", "--memory:1: not valid YAML: unacceptable character #x0007"),
        ("{a: " * 200_000, "--memory:1: more than 50 nested levels"),
        ("name:\ta", "--memory:1: not valid YAML: found character '\\t' that cannot start any"),
        ("\udcff", "--memory:1: not valid YAML: unacceptable character #xdcff"),
    ],
)
def test_messages_name_the_character(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads_value(text, "--memory")
    assert str(error.value).startswith(message)
