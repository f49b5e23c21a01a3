"""The token that begins documents, against what `tokenizers` itself puts before a text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.core.errors import ConfigError, InputError
from pipeline.tokenizers.definition import (
    Bos,
    TokenizerDefinition,
    decode_bytes,
    load_definition,
    restore_definition,
)
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer, tokenize_documents
from pipeline.tokenizers.engines import build_engine

MERGES = 2_000
EOS = 256 + MERGES
S, E, X = EOS + 1, EOS + 2, EOS + 3
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}


def template(*before: str, after: tuple[str, ...] = ()) -> dict[str, Any]:
    """What Llama 3 has, for instance."""
    ids = {"<s>": S, "</s>": E, "<x>": X}
    pieces: list[Any] = [{"SpecialToken": {"id": token, "type_id": 0}} for token in before]
    pieces += [{"Sequence": {"id": "A", "type_id": 0}}]
    pieces += [{"SpecialToken": {"id": token, "type_id": 0}} for token in after]
    named = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": pieces,
        "special_tokens": named,
    }


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "processors": list(steps)}


STEPS: dict[str, Any] = {
    "none": None,
    "bytes": BYTES,
    "template": template("<s>"),
    "both ends": template("<s>", after=("</s>",)),
    "behind only": template(after=("</s>",)),
    "as Llama 3 has it": sequence(BYTES, template("<s>")),
    "as BERT has it": {"type": "BertProcessing", "sep": ["<x>", X], "cls": ["<s>", S]},
    "as RoBERTa has it": {
        "type": "RobertaProcessing", "sep": ["<x>", X], "cls": ["<s>", S],
        "trim_offsets": True, "add_prefix_space": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def write(
    gpt2: TokenizerDefinition, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """The first merges of GPT-2, with three more special tokens and a post-processor."""
    model = json.loads(gpt2.json)["model"]
    model["merges"] = model["merges"][:MERGES]
    model["vocab"] = {token: n for token, n in model["vocab"].items() if n < EOS}

    def call(step: dict[str, Any] | None) -> Path:
        content = json.loads(gpt2.json) | {"model": model}
        content["added_tokens"][0]["id"] = EOS
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, token in ((S, "<s>"), (E, "</s>"), (X, "<x>")):
            added = {"id": number, "content": token, **flags, "special": True}
            content["added_tokens"].append(added)
        path = tmp_path_factory.mktemp("bos") / "tokenizer.json"
        path.write_text(json.dumps({**content, "post_processor": step}))
        return path

    return call


def before_texts(json_text: str) -> list[int]:
    """What the library puts before a text of one token."""
    ids = Tokenizer.from_str(json_text).encode("a").ids
    return list(ids[: ids.index(64)])


@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.parametrize("bos", [None, "<s>", E, X, False])
def test_whoever_reads_the_run_s_tokenizer_gets_the_same(
    write: Callable[..., Path], name: str, bos: Bos
) -> None:
    path = write(STEPS[name])
    theirs = before_texts(path.read_text())
    definition = load_definition(path, "<|endoftext|>", bos=bos)
    wanted = {None: theirs, "<s>": [S], E: [E], X: [X], False: []}[bos]
    assert ([] if definition.bos_id is None else [definition.bos_id]) == wanted
    assert before_texts(definition.json) == wanted
    again = restore_definition("kept", definition.json.encode(), definition.eos_id)
    assert (again.bos_id, again.bos_token) == (definition.bos_id, definition.bos_token)
    assert again.content_hash == definition.content_hash
    if wanted == theirs:
        assert json.loads(definition.json)["post_processor"] == STEPS[name]


def test_a_text_is_no_longer_than_its_offsets_say(write: Callable[..., Path]) -> None:
    """What the byte-level step does to offsets stays when the template is exchanged."""
    path = write(sequence(BYTES, template("<s>")))
    as_written = Tokenizer.from_str(path.read_text())
    ours = Tokenizer.from_str(load_definition(path, "<|endoftext|>", bos="<x>").json)
    text = " one  two"
    assert ours.encode(text).offsets[1:] == as_written.encode(text).offsets[1:]


def test_the_eos_before_a_text_is_no_bos(write: Callable[..., Path]) -> None:
    path = write(template("</s>"))
    definition = load_definition(path, "</s>")
    assert definition.bos_id is None
    assert before_texts(definition.json) == []
    with pytest.raises(ConfigError, match="ends documents, so it is before the next one anyway"):
        load_definition(path, "</s>", bos="</s>")


def test_what_is_not_clear_is_asked_for(write: Callable[..., Path]) -> None:
    path = write(template("<s>", "<x>"))
    with pytest.raises(ConfigError, match=r"2 tokens before a text \(<s>, <x>\).*tokenize\.bos"):
        load_definition(path, "</s>")
    assert load_definition(path, "</s>", bos="<x>").bos_id == X
    assert load_definition(path, "</s>", bos=False).bos_id is None
    with pytest.raises(ConfigError, match="no token '<none>' to begin documents with"):
        load_definition(path, "</s>", bos="<none>")
    with pytest.raises(ConfigError, match=r"cannot mark the beginning of a document.* as bos"):
        load_definition(path, "</s>", bos="a")


@pytest.fixture(scope="module")
def llama_like(write: Callable[..., Path]) -> TextTokenizer:
    return open_tokenizer(load_definition(write(STEPS["both ends"]), "</s>"))


def test_the_fast_engine_takes_it(llama_like: TextTokenizer) -> None:
    assert llama_like.engine_name == "fastokens"


@given(st.lists(st.text(max_size=30), max_size=9))
def test_documents_begin_with_it(llama_like: TextTokenizer, texts: list[str]) -> None:
    oracle = Tokenizer.from_str(llama_like.definition.json)
    oracle.encode_special_tokens = True
    found = tokenize_documents(pa.array(texts, pa.string()), llama_like)
    assert found.to_pylist() == [oracle.encode(text).ids for text in texts]
    for text, ids in zip(texts, found.to_pylist(), strict=True):
        assert decode_bytes(llama_like.definition, np.array(ids)) == text.encode()


def test_a_text_that_yields_it_is_named(write: Callable[..., Path]) -> None:
    definition = load_definition(write(template("<s>")), "</s>")
    engine = build_engine("tokenizers", definition)
    engine.tokenizer.encode_special_tokens = False  # type: ignore[attr-defined]
    tokenizer = TextTokenizer(definition, "tokenizers", "for this test", engine)
    with pytest.raises(InputError, match=rf"text 1 yields the id {S} of '<s>'.*another bos"):
        tokenize_documents(pa.array(["a", "b<s>"]), tokenizer)
