"""A tokenizer.json becomes a definition: vocabulary, EOS, content hash, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

import pipeline
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import hash_bytes
from pipeline.tokenizers import definition as definitions
from pipeline.tokenizers.definition import (
    TokenizerDefinition,
    decode_bytes,
    load_definition,
    reference_tokenizer,
    restore_definition,
)
from pipeline.tokenizers.engine import open_tokenizer

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, gpt2: TokenizerDefinition) -> Write:
    """Write the first 256 tokens of GPT-2, with these special tokens and changes of its parts."""

    def call(special: tuple[str, ...] = ("<|endoftext|>",), **changes: Any) -> Path:
        content = json.loads(gpt2.json)
        vocabulary = {t: i for t, i in content["model"]["vocab"].items() if i < 256}
        content["model"] |= {"vocab": vocabulary, "merges": [], **changes.pop("model", {})}
        content["added_tokens"] = []
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({**json.loads(tokenizer.to_str()), **changes}))
        return path

    return call


def test_gpt2(gpt2: TokenizerDefinition) -> None:
    assert (gpt2.vocab_size, gpt2.eos_id, gpt2.eos_token) == (50257, 50256, "<|endoftext|>")
    assert gpt2.dtype == np.uint16
    assert gpt2.added_tokens == ("<|endoftext|>",)


def test_special_tokens_become_tokens_only_where_asked(write: Write) -> None:
    """The text of a special token stays text, unless tokenize.special_tokens names it."""
    path = write(("<|endoftext|>", "<|user|>", "<|tool|>"))
    plain = load_definition(path, "<|endoftext|>")
    asked = load_definition(path, "<|endoftext|>", ["<|user|>"])
    assert plain.content_hash != asked.content_hash
    assert load_definition(path, "<|endoftext|>", ()).content_hash == plain.content_hash
    text = "a<|user|>b<|tool|><|endoftext|>"
    numbers = {t: reference_tokenizer(plain).token_to_id(t) for t in plain.added_tokens}
    for definition, expected in ((plain, set()), (asked, {numbers["<|user|>"]})):
        ids = pipeline.tokenize_texts([text], open_tokenizer(definition)).to_pylist()[0]
        assert set(ids) & set(numbers.values()) == expected
        assert decode_bytes(definition, np.array(ids)) == text.encode()


def test_special_tokens_that_cannot_be_asked_for(write: Write) -> None:
    path = write(("<|endoftext|>", "<|user|>"))
    with pytest.raises(
        ConfigError, match=r"tokenize.special_tokens: the tokenizer has no special token '<\|x\|>'"
    ):
        load_definition(path, "<|endoftext|>", ["<|x|>"])
    with pytest.raises(ConfigError, match="cannot mark the end of a document"):
        load_definition(path, "<|endoftext|>", ["<|endoftext|>"])


@pytest.mark.shared_data
def test_gpt2_from_a_file(gpt2: TokenizerDefinition, shared_data: Path) -> None:
    """The only special token of the file is the EOS; the parts that make ids are ours."""
    other = load_definition(shared_data / "gpt2/tokenizer.json")
    assert (other.vocab_size, other.eos_id) == (gpt2.vocab_size, gpt2.eos_id)
    ours, theirs = (json.loads(d.json)["model"] for d in (gpt2, other))
    assert ours["vocab"] == theirs["vocab"]
    assert [tuple(m.split(" ")) for m in ours["merges"]] == [
        tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in theirs["merges"]
    ]


def test_a_directory_will_do(write: Write) -> None:
    path = write()
    assert load_definition(path.parent).content_hash == load_definition(path).content_hash


def test_the_hash_depends_on_content_alone(write: Write) -> None:
    path = write(("<|endoftext|>", "<x>"))
    first = load_definition(path, "<x>")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items())), indent=2))
    assert load_definition(path, "<x>").content_hash == first.content_hash
    assert load_definition(path, "<|endoftext|>").content_hash != first.content_hash
    content["added_tokens"][1]["lstrip"] = True
    path.write_text(json.dumps(content))
    assert load_definition(path, "<x>").content_hash != first.content_hash


def test_truncation_and_padding_do_not_touch_documents(write: Write) -> None:
    path = write()
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    path.write_text(tokenizer.to_str())
    definition = load_definition(path)
    assert len(reference_tokenizer(definition).encode("ten letters").ids) == 11
    assert len(open_tokenizer(definition).engine.encode(["ten letters", ""]).ids) == 11


def test_the_one_form_has_the_ids_of_the_file(
    trained: TokenizerDefinition, fold_texts: list[str]
) -> None:
    as_written = Tokenizer.from_file(trained.name)
    as_written.encode_special_tokens = True
    theirs = as_written.encode_batch(fold_texts[:500])
    ours = reference_tokenizer(trained).encode_batch(fold_texts[:500])
    assert [e.ids for e in ours] == [e.ids for e in theirs]


def test_eos_of_the_config_beside(write: Write) -> None:
    path = write(("<a>", "<b>", "<c>"))
    beside = path.with_name("special_tokens_map.json")
    beside.write_text(json.dumps({"eos_token": {"content": "<b>", "lstrip": False}}))
    assert load_definition(path).eos_token == "<b>"
    path.with_name("tokenizer_config.json").write_text('{"eos_token": "<c>"}')
    assert load_definition(path).eos_token == "<c>"
    assert load_definition(path, "<a>").eos_id == 256
    assert load_definition(path, 257).eos_token == "<b>"


def test_eos_must_be_named_where_it_is_open(write: Write) -> None:
    with pytest.raises(
        ConfigError, match=r"tokenize\.eos in a config, or --eos \(its special .* '<a>', '<b>'"
    ):
        load_definition(write(("<a>", "<b>")))
    with pytest.raises(ConfigError, match="its special tokens: none"):
        load_definition(write(()))


@pytest.mark.parametrize("eos", ["<none>", 9999, -1, 1 << 40])
def test_eos_must_be_in_the_vocabulary(eos: str | int, write: Write) -> None:
    with pytest.raises(ConfigError, match="its vocabulary has no token"):
        load_definition(write(), eos)


def test_eos_must_not_be_text(write: Write) -> None:
    with pytest.raises(ConfigError, match="the text 'a' becomes the token 64 itself"):
        load_definition(write(), "a")


def test_dropout_is_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"BPE dropout 0\.1 makes token ids random"):
        load_definition(write(model={"dropout": 0.1}))


def test_ids_beyond_uint16(write: Write) -> None:
    path = write()
    content = json.loads(path.read_text())
    content["model"]["vocab"]["ab"] = 70_000
    path.write_text(json.dumps(content))
    definition = load_definition(path)
    assert definition.vocab_size == 70_001
    assert definition.dtype == np.uint32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("[]", "expected an object"),
        ("{}", "no model with a vocabulary"),
        ('{"model": {"type": "BPE", "vocab": {}}}', "no model with a vocabulary"),
        ('{"added_tokens": [{"content": "e", "special": true}], "model": {"vocab": [1]}}',
         "`tokenizers` cannot read it"),
        ('{"added_tokens": [1], "model": {"vocab": {"a": 0}}}', "`tokenizers` cannot read it"),
        ('{"model": {"type": "BPE", "vocab": {"\\ud83d": 0}, "merges": []}}',
         "`tokenizers` cannot read it"),
    ],
)  # fmt: skip
def test_what_is_no_tokenizer(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_definition(path)
    assert str(path) in str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the tokenizer"):
        load_definition(tmp_path / "none.json")


def test_gpt2_is_what_tokenizers_reads() -> None:
    """It is shipped, so nothing asks `tokenizers` about it again."""
    asked = definitions._define("gpt2", definitions._gpt2_json(), "<|endoftext|>")
    assert load_definition("gpt2") == asked
    assert hash_bytes(asked.json.encode()) == definitions._GPT2_HASH
    assert restore_definition("gpt2", asked.json.encode(), asked.eos_id) == asked


def test_a_kept_definition_is_restored(gpt2: TokenizerDefinition) -> None:
    restored = restore_definition("gpt2", gpt2.json.encode(), gpt2.eos_id)
    assert restored == gpt2
    assert restored.content_hash == gpt2.content_hash


def test_decoding(gpt2: TokenizerDefinition, trained: TokenizerDefinition) -> None:
    text = "naïve 中文\n<|endoftext|> العَرَبِيَّة 😀 I'ſ"
    for definition in (gpt2, trained):
        ids = open_tokenizer(definition).engine.encode([text]).ids
        assert decode_bytes(definition, np.array(ids)) == text.encode()
        assert decode_bytes(definition, np.append(ids, definition.eos_id)) == text.encode()
        halves = [decode_bytes(definition, part) for part in np.array_split(ids, 5)]
        assert b"".join(halves) == text.encode()
