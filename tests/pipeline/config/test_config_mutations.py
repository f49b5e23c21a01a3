"""Valid configs with values changed by the type of their field: `prep plan` succeeds or says what
is wrong, a line for each mistake. Never a traceback.

`MUTATION_SEED=… pytest …` repeats other draws than the everyday ones.
"""

import functools
import json
import math
import os
import random
import typing
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.commands import app
from pipeline.config.model import RelativePath, _models_in
from pipeline.config.prep import Config, load_config
from tests.forked import prep_in_fork
from tests.slow import mark_slow

SHIPPED = ("pile", "quickstart")
SEED = int(os.environ.get("MUTATION_SEED", "22"))

Draw = random.Random
Place = tuple[str | int, ...]

NUMBERS = [0, 1, -1, 2, 7, 64, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.0, 0.5, 1.0, 1.5, -0.1,
           1e-9, 1e308, -1e308, 5e-324, math.nan, math.inf]  # fmt: skip
TEXTS = ["", " ", "x", "7", "-1", "0x10", "1e3", "true", "null", "64 MiB", "-64 MiB", "1.5 kB",
         "999999999999999 TiB", "0.0000001 B", "64 MiX", "5 %", "0 %", "100 %", "101 %", "% 5",
         "../..", "/", ".", "/dev/null", "/dev/zero", "**", "[", "a\x00b", "\x1b[31m", "é東京😀",
         "\u202egnp", "a" * 5000, "{", "{text", "{text}", "{{}}", "a..b", ".a", "meta.a.b", "gpt2",
         "builtin:x", "builtin:quickstart", "builtin:default", "s3://bucket/x", "file:///", "::",
         "nowhere.yaml", "tcp://nowhere:1", "US", "en", "rules.py:keep",
         "\ud800"]  # fmt: skip
CLUSTERS: list[dict[str, Any]] = [
    {"kind": "local"}, {"kind": "dask", "address": "tcp://nowhere:1"},
    {"kind": "ssh", "hosts": ["nowhere"], "workers": 1},
    {"kind": "slurm", "workers": 2, "memory": 1 << 30},
    {"kind": "kubernetes", "image": "x", "workers": 2, "memory": 1, "claim": "x", "mount": "/"},
]  # fmt: skip
OTHERS = [None, True, False, [], {}, [[]], [None], {"x": 1}, [{"x": [1]}], {"": ""}, ["a", "a"]]


def clusters_with(key: str) -> list[dict[str, Any]]:
    """Sections of the kinds that have this key."""
    kinds = {name: m for m in _models_in(Config.model_fields["cluster"].annotation)
             for name in members(m.model_fields["kind"].annotation)}  # fmt: skip
    return [c for c in CLUSTERS if key in ("cluster", *kinds[c["kind"]].model_fields)]


@functools.cache
def fields() -> dict[Place, Any]:
    """Every place of a config -> its FieldInfo."""

    def walk(model: type[BaseModel], place: Place) -> Iterator[tuple[Place, Any]]:
        for name, info in model.model_fields.items():
            here: Place = (*place, name)
            yield here, info
            inside: Place = (*here, 0) if name in ("inputs", "custom") else here
            for inner in _models_in(info.annotation):
                yield from walk(inner, inside)

    return dict(walk(Config, ()))


def members(annotation: Any) -> list[Any]:
    """The words of all Literal types in an annotation."""
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [found for inner in typing.get_args(annotation) for found in members(inner)]


def bounds(info: Any) -> list[Any]:
    """Values at, below and above the limits of a field."""
    limits = [getattr(mark, name) for mark in info.metadata for name in ("ge", "gt", "le", "lt")
              if hasattr(mark, name)]  # fmt: skip
    return [limit + step for limit in limits for step in (-1, 0, 1)]


def drawn_value(draw: Draw, info: Any) -> Any:
    """A value for a field: as a rule of its type, valid or at its edge; now and then of another."""
    words, near = members(info.annotation), bounds(info)
    own: list[Any] = [*words, *near, *near, *([] if info.is_required() else [info.get_default()])]
    own += [str(word).upper() for word in words] + [f"{word}x" for word in words[:1]]
    kind = str(info.annotation)
    own += NUMBERS if "int" in kind or "float" in kind else []
    own += [True, False] if "bool" in kind else []
    own += TEXTS if "str" in kind else []
    chosen = draw.choice(own) if own and draw.random() < 0.7 else draw.choice(
        draw.choice((NUMBERS, TEXTS, OTHERS))
    )  # fmt: skip
    if "tuple" in kind and draw.random() < 0.7:
        return [chosen, *draw.choices(own or TEXTS, k=draw.randrange(3))]
    if "dict" in kind and draw.random() < 0.7:
        return {draw.choice(TEXTS): chosen, draw.choice(["a", "validation", "Wiki"]): chosen}
    return plain(chosen)


def plain(value: Any) -> Any:
    return json.loads(value.model_dump_json()) if isinstance(value, BaseModel) else value


def put(value: dict[str, Any], place: Place, new: Any) -> None:
    """Set it there, making sections on the way unless something else is in their place."""
    target: Any = value
    for name, after in pairwise(place):
        if isinstance(target, list):
            if not target:
                return
            target = target[0]
        elif isinstance(target, dict):
            if not isinstance(target.get(str(name)), dict | list):
                target[str(name)] = [{}] if after == 0 else {}
            target = target[str(name)]
        else:
            return
    if isinstance(target, dict):
        target[str(place[-1])] = new
    elif isinstance(target, list) and place[-1] == 0:
        target[:1] = [new]


def mutated(draw: Draw, value: dict[str, Any]) -> dict[str, Any]:
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place = draw.choice(list(fields()))
        if place[0] == "cluster":
            value["cluster"] = dict(draw.choice(clusters_with(str(place[-1]))))
        match draw.randrange(12):
            case 0:
                put(value, (*place[:-1], f"{place[-1]}{draw.choice('sx_ ')}"), 1)
            case 1:
                put(value, place, draw.choice(OTHERS))
            case 2:
                value.pop(draw.choice(list(value)), None)
            case _:
                put(value, place, drawn_value(draw, fields()[place]))
    return value


def written(value: Any) -> str:
    """YAML: JSON with numbers that YAML alone has, which keeps lone surrogates as escapes."""
    text = json.dumps(value, indent=1)
    return text.replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")


Plan = Callable[[dict[str, Any]], tuple[int, str]]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, write_prose: Any) -> Plan:
    """`prep plan` of a config, next to a small corpus: exit code and standard error."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"text": write_prose(1)}) + "\n")
    (tmp_path / "rules.py").write_text("def keep(text, meta=None, **settings): ...\n")
    monkeypatch.chdir(tmp_path)
    there = sorted(tmp_path.rglob("*"))

    def call(value: dict[str, Any]) -> tuple[int, str]:
        path = tmp_path / "c.yaml"
        path.write_text(written(value), encoding="utf-8")
        code = app.run_app(functools.partial(app.app, args=["plan", str(path)]), "prep")
        error = str(capsys.readouterr().err)
        path.unlink()
        assert sorted(tmp_path.rglob("*")) == there
        return code, error

    return call


def shipped(name: str) -> dict[str, Any]:
    """A shipped config as plain data, every default written out now and then."""
    value = json.loads(load_config(name).config.model_dump_json(exclude_unset=True))
    value["inputs"][0]["path"] = "raw"
    return dict(value)


def check(plan: Plan, value: dict[str, Any]) -> int:
    code, error = plan(value)
    shown = f"{written(value)[:3000]}\n{code}: {error}"
    assert code in (0, 2, 3, 5), shown
    assert "Traceback" not in error, shown
    if code:
        assert error.startswith("prep: "), shown
        lines = error.removeprefix("prep: ").splitlines()
        assert all(line.isprintable() for line in lines) and len(lines) <= 21, shown
    return code


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("number", mark_slow(range(8), *range(4, 8)))
def test_mutations(plan: Plan, name: str, number: int) -> None:
    draw = random.Random(f"{SEED} {name} {number}")
    codes = [check(plan, mutated(draw, shipped(name))) for _ in range(18)]
    assert set(codes) - {2}, "no draw was a valid config"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("number", range(100, 140))
def test_many_mutations(plan: Plan, name: str, number: int) -> None:
    draw = random.Random(f"{SEED} {name} {number}")
    for _ in range(100):
        check(plan, mutated(draw, shipped(name)))


LITTLE_MEMORY = """
import resource
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4_000_000_000,) * 2)
"""


@pytest.mark.parametrize(
    "place",
    [
        "screen.policy", "screen.origins.0", "tokenize.tokenizer", "filters.c4.bad_words",
        "inputs.0.path", "decontaminate.sets.0",
    ],
)  # fmt: skip
def test_a_path_of_endless_bytes_is_an_error(tmp_path: Path, place: str) -> None:
    """In a process that may take little more memory, so that a failure of this test is one."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text('{"text": "a"}\n')
    lists = place.removesuffix(".0") != place
    change = place.removesuffix(".0") + ("=[/dev/zero]" if lists else "=/dev/zero")
    call = ("plan", "pile", "--set", "inputs.0.path=raw", "--set", change)
    ended = prep_in_fork(*call, cwd=tmp_path, before=LITTLE_MEMORY)
    assert ended.code in (2, 3) and ended.err.startswith("prep: "), ended.err
    assert "/dev/zero" in ended.err and len(ended.err.splitlines()) <= 3, ended.err


def test_unchanged_configs_can_be_planned(plan: Plan) -> None:
    for name in SHIPPED:
        assert plan(shipped(name)) == (0, "")


def test_every_field_can_be_reached() -> None:
    """What is put somewhere arrives there, so that no part of a config goes without mutations."""
    assert len(fields()) > 100
    for place, info in fields().items():
        value = shipped("pile")
        put(value, place, "HERE")
        assert "HERE" in json.dumps(value), place
        marked = any(isinstance(mark, RelativePath) for mark in info.metadata)
        assert not marked or "str" in str(info.annotation)
