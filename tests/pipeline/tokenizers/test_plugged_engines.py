"""Engines that an installed distribution adds: the example of docs/extending.md in `prep run`, in
this process and in one that starts with a worker, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import FunctionError
from pipeline.core.plugins import PlugIn, PlugInCode
from pipeline.stages import tokenize
from pipeline.tokenizers import engine
from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer
from pipeline.tokenizers.engines import FlatTokens, PluggedEngine, load_plugged_engines
from tests.forked import Ended
from tests.pipeline.plugins import example, install, only_line, prep_here, prep_with

GROUP = "wafermill.tokenizers"
CODE = example("## A tokenizer engine")
CONFIG = """\
name: steady
inputs: [{name: web, path: web.jsonl}]
tokenize: {engine: steady}
pack: {max_sequence_length: 64, validation_share: 0.0}
"""


@pytest.fixture
def home(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    texts = [write_prose(seed, 60) for seed in range(6)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "c.yaml").write_text(CONFIG)
    install_engine(tmp_path, CODE)
    return tmp_path


def install_engine(home: Path, code: str, entry: str = "my_engine:Steady") -> None:
    install(home / "site", "my-engine", {GROUP: {"steady": entry}}, {"my_engine.py": code})


Run = Callable[..., Ended]


@pytest.fixture
def run(home: Path, prep: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`prep run` in this process, with what is installed at home."""
    monkeypatch.chdir(home)
    call = prep_here(prep, "my_engine", load_plugged_engines, engine._open)
    command = ("run", "c.yaml", "--workers", 0, "--out")
    return lambda *words: call(home / "site", *command, *words)


def test_a_run(home: Path, run: Run) -> None:
    """The same ids as by any other engine, on a worker too; the stage notes the code."""
    assert run("out").code == 0
    done = prep_with(home / "site", home, "run", "c.yaml", "--workers", 1, "--out", "workers")
    assert done.code == 0, done.err
    assert run("plain", "--set", "tokenize.engine=null").code == 0
    shards = [
        (home / out / "hdf5/train/examples_000000.h5").read_bytes()
        for out in ("out", "workers", "plain")
    ]
    assert shards[0] == shards[1] == shards[2]
    stages = [
        json.loads((home / out / "manifests/tokenize.json").read_bytes())
        for out in ("out", "workers", "plain")
    ]
    software = [stage["fields"]["software"] for stage in stages]
    assert software[0] == software[1]
    assert software[0]["tokenizer engine steady"].startswith("my-engine 1.0, code ")
    assert set(software[2]) == {"tokenizers"}
    assert stages[0]["fingerprint"] == stages[1]["fingerprint"] != stages[2]["fingerprint"]


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        (
            "my_engine:Steady",
            CODE.replace("encode_special_tokens = True", "encode_special_tokens = False"),
            "tokenize.engine: steady 1.0 differs from tokenizers: in ",
        ),
        ("my_engine:Steady", CODE.replace("def encode", "def ids"), "without a method encode"),
        ("my_engine:np", CODE, "is a module; expected a class"),
        (
            "my_engine:Steady",
            CODE.replace("Tokenizer.from_str", "Tokenizer.from_strings"),
            "my_engine.py:11: AttributeError: type object",
        ),
    ],
)
def test_refused(entry: str, code: str, message: str, home: Path, run: Run) -> None:
    install_engine(home, code, entry)
    done = run("out")
    assert done.code == 2
    assert message in done.err.splitlines()[-1]


def test_few_texts_go_to_the_reference(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built sooner. The tokens are those of the engine that more texts go to."""
    opened = []

    def open_and_note(definition: TokenizerDefinition) -> TextTokenizer:
        opened.append(open_tokenizer(definition))
        return opened[-1]

    monkeypatch.setattr(tokenize, "open_tokenizer", open_and_note)
    for name in ("few", "more"):
        assert run(name, "--set", "tokenize.engine=null").code == 0
        monkeypatch.setattr(tokenize, "_FEW_BYTES", 0)
    assert [tokenizer.engine_name for tokenizer in opened] == ["tokenizers", "fastokens"]
    few, more = ((home / name / "tokens/000000.arrow").read_bytes() for name in ("few", "more"))
    assert few == more


def test_unknown(run: Run) -> None:
    done = run("out", "--set", "tokenize.engine=stedy")
    assert done.code == 2
    assert "tokenize.engine: there is no engine 'stedy'; did you mean 'steady'?" in done.err


def test_a_failure_in_a_run(home: Path, run: Run) -> None:
    """On a text that the check before the run does not have: one line, with that text."""
    text = json.loads((home / "web.jsonl").read_text().splitlines()[3])["text"]
    code = f"        if {text[:40]!r} in ''.join(texts):\n            1 / 0\n        rows = ["
    install_engine(home, CODE.replace("        rows = [", code))
    done = run("out")
    assert done.code == 3
    line = only_line(done)
    assert "documents/000000.arrow: my-engine 1.0: its wafermill.tokenizers entry point" in line
    assert "steady failed on " in line and text[:40] in line
    assert line.endswith("site/my_engine.py:16: ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        (None, None, "returned a NoneType, no FlatTokens, for 'a'"),
        ([0.5], [0, 1], "ids that are no flat array of integers"),
        ([[1]], [0, 1], "ids that are no flat array of integers"),
        ([1], [0, 1, 1], "offsets that are no array of 2 integers"),
        ([1], [0, 2], "offsets that do not ascend from 0 to the 1 ids"),
        ([1], [1, 1], "offsets that do not ascend from 0 to the 1 ids"),
        ([50257], [0, 1], "the id 50257, outside the vocabulary of 50,257 ids"),
        ([-1], [0, 1], "the id -1, outside the vocabulary"),
    ],
)
def test_ids_are_checked(ids: Any, offsets: Any, message: str) -> None:
    tokens = None if ids is None else FlatTokens(np.array(ids), np.array(offsets))

    class Wrong:
        def __init__(self, definition: object) -> None: ...

        def encode(self, texts: object) -> Any:
            return tokens

    plug_in = PlugIn[type](GROUP, "steady", Wrong, PlugInCode("my-engine", "1.0", ""))
    with pytest.raises(FunctionError, match=message):
        PluggedEngine(plug_in, load_definition("gpt2")).encode(["a"])
