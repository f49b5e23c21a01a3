"""docs/cstorch.md names what there is."""

import re
from pathlib import Path

import wafer_backend
from wafer_backend.backends.flags import WITHOUT_EFFECT
from wafer_backend.legacy.training import MODES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cstorch.md").read_text(encoding="utf-8")


def test_every_public_function_is_named():
    functions = [n for n in wafer_backend.__all__ if n.islower()]
    likes = {"full_like": "full", "ones_like": "ones", "zeros_like": "zeros"}
    ours = {"device_of", "performance_model"}
    missing = {n for n in functions if likes.get(n, n) not in PAGE} - ours
    assert missing == set()


def test_every_flag_that_does_something_is_named():
    csx = wafer_backend.backends.csx
    for group in ("precision", "performance", "emulation"):
        for name, meaning in getattr(csx, group).describe().items():
            expected = name if meaning == WITHOUT_EFFECT else f"`{group}.{name}`"
            assert expected in PAGE, f"{group}.{name}"


def test_the_error_it_shows_is_the_error():
    shown = re.search(r"AttributeError: (.*device_annotation.*)", PAGE)
    assert shown is not None
    assert shown[1] == str(wafer_backend.cstorch.aliases.missing("device_annotation"))


def test_modes():
    assert "|".join(MODES) in PAGE
