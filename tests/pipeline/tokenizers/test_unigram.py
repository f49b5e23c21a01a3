"""Unigram tokenizers, whose models find their own control tokens in text, and models of
SentencePiece."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import pipeline
from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import (
    TokenizerDefinition,
    decode_bytes,
    load_definition,
    reference_tokenizer,
    restore_definition,
)
from pipeline.tokenizers.engine import open_tokenizer

SPECIAL = ["<pad>", "</s>", "<unk>", "[MASK]", "<|é中|>"]
STEPS = {
    "none": None,
    "one": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json as `tokenizers` trains it: control tokens are pieces of score 0."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    stages = Path(pipeline.__file__).parent / "stages"
    words = [path.read_text() for path in sorted(stages.glob("c*.py"))]
    tokenizer.train_from_iterator([line for text in words for line in text.split("\n")], trainer)
    directory = tmp_path_factory.mktemp("unigram")
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def with_steps(trained: Path, name: str, out: Path) -> TokenizerDefinition:
    content = json.loads((trained / "tokenizer.json").read_text())
    path = out / f"{name}.json"
    path.write_text(json.dumps({**content, "pre_tokenizer": STEPS[name]}))
    return load_definition(path, "</s>")


@pytest.fixture(scope="module", params=sorted(STEPS))
def definition(
    request: pytest.FixtureRequest, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> TokenizerDefinition:
    return with_steps(trained, request.param, tmp_path_factory.mktemp("steps"))


@given(text=st.lists(st.sampled_from([*SPECIAL, "</s", "＜/s＞", "def ", "x", " ", "é", "\n"])))
def test_text_never_becomes_a_control_token(
    definition: TokenizerDefinition, text: list[str]
) -> None:
    """Alone, within words, repeated, or only after normalisation. `<unk>` is what an unknown
    character becomes as well, and is left out."""
    tokenizer = reference_tokenizer(definition)
    control = {tokenizer.token_to_id(token) for token in SPECIAL if token != "<unk>"}
    ids = tokenizer.encode("".join(text), add_special_tokens=False).ids
    assert not control & set(ids)


def test_all_other_text_keeps_its_ids(definition: TokenizerDefinition) -> None:
    """Those of the file as it is; and the definition that a run keeps is the same once more."""
    plain = Tokenizer.from_file(definition.name)
    stages = Path(pipeline.__file__).parent / "stages"
    texts = [path.read_text() for path in sorted(stages.glob("*.py"))]
    assert not any(token in text for token in SPECIAL[:1] for text in texts)
    found = pipeline.tokenize_texts(texts, open_tokenizer(definition)).to_pylist()
    assert found == [plain.encode(text, add_special_tokens=False).ids for text in texts]
    again = restore_definition(definition.name, definition.json.encode(), definition.eos_id)
    assert again == definition


def test_the_text_of_eos_comes_back(definition: TokenizerDefinition) -> None:
    (ids,) = pipeline.tokenize_texts(["x</s>x"], open_tokenizer(definition)).to_pylist()
    assert b"x</s>x" in decode_bytes(definition, np.array(ids))


@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_sentencepiece_model_is_named(place: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0c\n\x03<s>\x15\x98")
    with pytest.raises(ConfigError, match=r"tokenizer.model: not a .* SentencePiece .* convert it"):
        load_definition(path if place == "file" else tmp_path)


def test_a_tokenizer_json_is_read_before_a_model_beside_it(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    (tmp_path / "tokenizer.json").write_bytes((trained / "tokenizer.json").read_bytes())
    assert load_definition(tmp_path, "</s>").eos_token == "</s>"
