"""Which engine is chosen, why, and what it is given."""

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.core.errors import InputError
from pipeline.tokenizers import engine, engines
from pipeline.tokenizers.battery import battery
from pipeline.tokenizers.definition import (
    TokenizerDefinition,
    load_definition,
    reference_tokenizer,
)
from pipeline.tokenizers.engine import open_tokenizer, tokenize_array, tokenize_documents
from pipeline.tokenizers.engines import (
    ENGINES,
    Engine,
    Fastokens,
    FlatTokens,
    Reference,
    Verdict,
    installed_build,
    verdict,
)


class Wrong(Reference):
    """The oracle, but for one string of the battery."""

    def encode(self, texts: Sequence[str]) -> FlatTokens:
        flat = super().encode(texts)
        if "\u00a0" not in texts:
            return flat
        row = flat.offsets[list(texts).index("\u00a0")]
        ids = flat.ids.copy()
        ids[row] += 1
        return FlatTokens(ids, flat.offsets)


class PanicException(BaseException):
    """What a panic in Rust is: no Exception."""


class Failing(Reference):
    def encode(self, texts: Sequence[str]) -> FlatTokens:
        raise PanicException("index out of bounds")


@pytest.fixture
def small(tmp_path: Path) -> TokenizerDefinition:
    """The bytes and EOS alone: every check is quick."""
    definition = load_definition("gpt2")
    content = json.loads(definition.json)
    content["model"]["merges"] = []
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {t: i for t, i in vocabulary.items() if i < 256}
    content["added_tokens"][0]["id"] = 256
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    return load_definition(path)


def install(patch: pytest.MonkeyPatch, build: str | None, *candidates: type[Engine]) -> list[str]:
    """Put engines before the oracle, all of one build; returns the log of the checks made. None of
    the engines opened before is used, and none opened here after the test."""
    names = [candidate.__name__ for candidate in candidates]
    table = {**dict(zip(names, candidates, strict=True)), "tokenizers": Reference}
    builds = {**dict.fromkeys(names, build), "tokenizers": installed_build("tokenizers")}
    checked: list[str] = []
    check = engines._check

    def logged(name: str, definition: TokenizerDefinition) -> Verdict:
        checked.append(name)
        return check(name, definition)

    for module in (engine, engines):
        patch.setattr(module, "ENGINES", table)
        patch.setattr(module, "installed_version", lambda name: "1.0")
    patch.setattr(engines, "installed_build", lambda name: builds[name])
    patch.setattr(engines, "_check", logged)
    patch.setattr(engines, "battery", lambda *_: [" ", "\u00a0", "a", "", "Hello world"])
    patch.setattr(engine, "_open", functools.cache(engine._open.__wrapped__))
    return checked


def test_an_engine_with_other_ids_is_passed_over(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "1.0", Wrong)
    tokenizer = open_tokenizer(small)
    assert tokenizer.engine_name == "tokenizers"
    assert "Wrong 1.0 differs from tokenizers: in '\\xa0' from token 0 on [" in tokenizer.reason
    assert tokenizer.reason.endswith("tokenizers 1.0 is the reference itself")


def test_an_engine_that_panics_is_passed_over(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "1.0", Failing, Wrong)
    tokenizer = open_tokenizer(small)
    assert tokenizer.engine_name == "tokenizers"
    assert "Failing 1.0 cannot use this tokenizer: index out of bounds; Wrong" in tokenizer.reason


def test_an_engine_that_is_missing_is_passed_over(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, None, Reference)
    assert open_tokenizer(small).engine_name == "tokenizers"
    assert open_tokenizer(small).reason.startswith("Reference is not installed; ")


def test_the_first_engine_that_agrees_is_chosen(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twin(Reference):
        pass

    install(monkeypatch, "1.0", Wrong, Twin)
    tokenizer = open_tokenizer(small)
    assert tokenizer.engine_name == "Twin"
    assert "Twin 1.0 gave the ids of tokenizers 1.0 on " in tokenizer.reason


def test_interrupts_are_not_verdicts(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted(Reference):
        def encode(self, texts: Sequence[str]) -> FlatTokens:
            raise KeyboardInterrupt

    install(monkeypatch, "1.0", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        verdict("Interrupted", small, tmp_path / "cache")
    assert not list(tmp_path.rglob("cache/**/*.json"))


def test_verdicts_are_kept(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked = install(monkeypatch, "1.0", Wrong)
    first = verdict("Wrong", small, tmp_path)
    assert verdict("Wrong", small, tmp_path) == first == Verdict(False, first.reason)
    assert checked == ["Wrong"]


@pytest.mark.parametrize("what", ["engine", "oracle", "tokenizer", "battery", "processor"])
def test_a_change_of_anything_checks_again(
    what: str, small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked = install(monkeypatch, "1.0", Wrong)
    verdict("Wrong", small, tmp_path)
    builds = {"Wrong": "1.0", "tokenizers": installed_build("tokenizers")}
    changed = small
    if what == "engine":
        builds["Wrong"] = "1.1"
    elif what == "oracle":
        builds["tokenizers"] = "9.9"
    elif what == "tokenizer":
        changed = replace(small, json=small.json + " ")
    elif what == "battery":
        monkeypatch.setattr(engines, "VERSION", -1)
    else:
        monkeypatch.setattr(engines, "_processor", lambda: "another")
    monkeypatch.setattr(engines, "installed_build", lambda name: builds[name])
    verdict("Wrong", changed, tmp_path)
    assert checked == ["Wrong", "Wrong"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"passed": 1, "reason": "x"}', b"\xff"])
def test_a_damaged_verdict_is_made_again(
    content: bytes, small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked = install(monkeypatch, "1.0", Wrong)
    first = verdict("Wrong", small, tmp_path)
    (kept,) = tmp_path.rglob("tokenizer-checks/*.json")
    kept.write_bytes(content)
    assert verdict("Wrong", small, tmp_path) == first
    assert checked == ["Wrong", "Wrong"]
    assert json.loads(kept.read_bytes())["passed"] is False


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked = install(monkeypatch, "1.0", Wrong)
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert not verdict("Wrong", small, file).passed
    assert not verdict("Wrong", small, file).passed
    assert checked == ["Wrong", "Wrong"]


def test_no_home_no_cache(small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = install(monkeypatch, "1.0", Wrong)
    monkeypatch.setattr(engines, "user_cache", lambda: None)
    assert not verdict("Wrong", small).passed
    assert not verdict("Wrong", small).passed
    assert checked == ["Wrong", "Wrong"]


def test_the_battery_is_the_same_every_time(gpt2: TokenizerDefinition) -> None:
    first, second = (battery(reference_tokenizer(gpt2), gpt2.added_tokens) for _ in range(2))
    assert first == second
    assert 3000 < len(first) < 10_000
    assert sum(len(text.encode()) for text in first) < 2_000_000


@pytest.mark.parametrize("name", [name for name in ENGINES if installed_build(name)])
def test_installed_engines_get_a_verdict(
    name: str, trained: TokenizerDefinition, tmp_path: Path
) -> None:
    if name != "tokenizers":
        found = verdict(name, trained, tmp_path)
        assert found.reason.startswith(name)


@pytest.mark.skipif(not installed_build("fastokens"), reason="fastokens is not installed")
def test_fastokens_is_used_for_our_tokenizers(
    gpt2: TokenizerDefinition, trained: TokenizerDefinition
) -> None:
    assert open_tokenizer(gpt2).engine_name == "fastokens"
    assert open_tokenizer(trained).engine_name == "fastokens", open_tokenizer(trained).reason


@pytest.mark.skipif(not installed_build("fastokens"), reason="fastokens is not installed")
def test_rare_texts_go_to_the_oracle_and_come_back_in_place(trained: TokenizerDefinition) -> None:
    texts = ["I's", "I'ſ", "", "he'ſx", "x", "I'ſ"]
    for batch in (texts, texts[1:2], [], ["", ""]):
        found, right = (e(trained).encode(batch) for e in (Fastokens, Reference))
        assert found.offsets.tolist() == right.offsets.tolist()
        assert found.ids.tolist() == right.ids.tolist()


@pytest.mark.skipif(not installed_build("gigatoken"), reason="gigatoken is not installed")
def test_gigatoken_is_renewed(gpt2: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_GIGATOKEN_RENEWAL", 10)
    giga = engines.Gigatoken(gpt2)
    first = giga._tokenizer
    expected = Reference(gpt2).encode(["Hello world"]).ids.tolist()
    assert giga.encode([]).offsets.tolist() == [0]
    assert giga.encode(["Hello world"]).ids.tolist() == expected
    assert giga._tokenizer is first
    assert giga.encode(["Hello world"]).ids.tolist() == expected
    assert giga._tokenizer is not first


def test_one_thread_unless_told_otherwise(
    small: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in engines._THREADS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    Reference(small)
    assert os.environ["FASTOKENS_BPE_THREADS"] == "1"
    assert os.environ["RAYON_NUM_THREADS"] == "3"


TEXTS = ["Hello world", "", "naïve", "中文" * 50, " "]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(TEXTS, pa.string()),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(["before", *TEXTS, "after"]).slice(1, len(TEXTS)),
        pa.chunked_array([TEXTS[:2], [], TEXTS[2:]], pa.string()),
        pa.chunked_array([pa.array(["x", *TEXTS]).slice(1)]),
    ],
    ids=["string", "large", "view", "dictionary", "slice", "chunks", "chunk of a slice"],
)
def test_any_array_of_strings(array: pa.Array, gpt2: TokenizerDefinition) -> None:
    oracle = reference_tokenizer(gpt2)
    found = tokenize_array(array, open_tokenizer(gpt2))
    assert found.type == pa.large_list(pa.uint32())
    assert found.to_pylist() == [oracle.encode(t, add_special_tokens=False).ids for t in TEXTS]


@pytest.mark.parametrize("array", [pa.array([], pa.string()), pa.chunked_array([], pa.string())])
def test_no_texts(array: pa.Array) -> None:
    assert tokenize_array(array, open_tokenizer()).to_pylist() == []
    assert tokenize_documents(array, open_tokenizer()).to_pylist() == []


def test_batches_keep_order(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{i} " + "word " * (i % 7) * i for i in range(300)]
    whole = tokenize_documents(pa.array(texts), open_tokenizer()).to_pylist()
    monkeypatch.setattr(engine, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(engine, "_BATCH_TEXTS", 17)
    sizes = [len(batch) for batch in engine.batch_texts(pa.array(texts))]
    assert sum(sizes) == 300 and min(sizes) == 1
    assert tokenize_documents(pa.array(texts), open_tokenizer()).to_pylist() == whole


def test_more_tokens_than_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_LARGEST_ROOM", 1)
    monkeypatch.setattr(engine, "_BATCH_TEXTS", 3)
    texts = [str(i) * 5 for i in range(50)]
    found = tokenize_array(pa.array(texts), open_tokenizer())
    right = Reference(load_definition("gpt2")).encode(texts)
    assert np.array_equal(found.values.to_numpy(), right.ids)


def test_a_null_is_refused() -> None:
    with pytest.raises(InputError, match="text 1 is null"):
        tokenize_array(pa.array(["a", None]), open_tokenizer())


def test_text_that_yields_eos_is_refused(
    gpt2: TokenizerDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer whose unknown token is its EOS, say: such text could not be told from an end."""
    tokenizer = open_tokenizer(replace(gpt2, name="odd", eos_token=" world", eos_id=995))
    monkeypatch.setattr(engine, "_BATCH_TEXTS", 2)
    with pytest.raises(InputError, match="text 3 yields the id 995 of ' world'"):
        tokenize_array(pa.array(["a", "b", "", "Hello world", " world"]), tokenizer)
