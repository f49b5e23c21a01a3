"""Methods of dataclasses: the same whether they were compiled or kept, and compiled once."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import written_methods
from pipeline.core.written_methods import _WrittenMethods

ROOT = Path(__file__).resolve().parents[3]
START = """
import dataclasses
from pipeline.core.written_methods import reuse_written_methods
reuse_written_methods()
import pipeline.stories.run
print(len(vars(dataclasses)["exec"].__self__._new))
"""


@pytest.fixture
def reusing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    """A function that begins a process that reuses methods, as far as dataclasses see it."""
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path))

    def begin() -> _WrittenMethods:
        methods = _WrittenMethods()
        monkeypatch.setitem(vars(dataclasses), "exec", methods.execute)
        return methods

    return begin


def python(code: str, cache: Path) -> str:
    environment = os.environ | {"WAFERMILL_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_second_process_compiles_no_method(tmp_path: Path) -> None:
    assert int(python(START, tmp_path)) > 500
    assert int(python(START, tmp_path)) == 0


def test_a_cache_that_cannot_be_written_or_is_damaged(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert int(python(START, blocked)) > 500
    assert python(START, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "methods").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert int(python(START, tmp_path / "cache")) > 500
    assert int(python(START, tmp_path / "cache")) == 0


def test_a_program_that_imports_the_package_keeps_its_own_dataclasses() -> None:
    code = "import dataclasses, pipeline; pipeline.run, pipeline.hdf5; print(vars(dataclasses))"
    assert "_WrittenMethods" not in python(code, Path("/nowhere"))


def define() -> list[type]:
    @dataclass
    class Plain:
        a: int
        b: list[int] = field(default_factory=list)

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Frozen:
        a: int = 3
        b: str = field(default="x", repr=False, compare=False)

    @dataclass(order=True, unsafe_hash=True)
    class Ordered:
        a: int
        b: dataclasses.InitVar[int] = 1

        def __post_init__(self, b: int) -> None:
            self.a += b

    return [Plain, Frozen, Ordered]


def test_kept_methods_are_those_that_are_compiled(reusing: Callable[[], Any]) -> None:
    compiled = define()
    reusing().execute("pass")
    before, written = reusing(), define()
    assert before._new
    before.keep()
    after, kept = reusing(), define()
    assert not after._new
    for classes in zip(compiled, written, kept, strict=True):
        first, *others = (
            [_codes(kind), repr(kind(a=1)), kind(a=1) == kind(a=1)] for kind in classes
        )
        assert first[0] and all(other == first for other in others)
    assert kept[2](1, 5) > kept[2](1, 2) and hash(kept[2](1)) == hash(kept[2](1))
    assert kept[0](1) == kept[0](1, []) != kept[0](1, [2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        kept[1]().a = 1


def _codes(kind: type) -> dict[str, object]:
    methods = {name: getattr(value, "__wrapped__", value) for name, value in vars(kind).items()}
    return {name: value.__code__ for name, value in methods.items() if hasattr(value, "__code__")}


@given(st.lists(st.from_regex(r"[a-z]{1,5}_", fullmatch=True), unique=True, max_size=4), st.data())
def test_any_fields(names: list[str], data: st.DataObject) -> None:
    methods = _WrittenMethods()
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(vars(dataclasses), "exec", methods.execute)
        twice = [make_dataclass("Row", names, frozen=True) for _ in range(2)]
    plain = make_dataclass("Row", names, frozen=True)
    values = [data.draw(st.integers()) for _ in names]
    assert {repr(kind(*values)) for kind in (*twice, plain)} == {repr(plain(*values))}
    assert {hash(kind(*values)) for kind in (*twice, plain)} == {hash(plain(*values))}


def test_what_is_kept_is_bounded(
    reusing: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_methods, "_MOST", 3)
    for number, expected in ((1, 2), (2, 2)):
        methods = reusing()
        for name in "ab":
            methods.execute(f"{name} = {number}", {})
        methods.keep()
        assert len(written_methods._read()) == expected
    methods = reusing()
    methods.execute("a = 2", {})
    assert not methods._new
