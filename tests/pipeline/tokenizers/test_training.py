"""A trained tokenizer: deterministic, complete, its EOS apart; the table of its fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from pipeline.core.errors import ConfigError, InputError
from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents
from pipeline.tokenizers.training import (
    Fertility,
    TrainingSettings,
    measure_fertility,
    save_tokenizer,
    train_tokenizer,
)

_CHILD = """
import sys
from pipeline.tokenizers.battery import random_strings
from pipeline.tokenizers.training import TrainingSettings, train_tokenizer
texts = list(random_strings(2000, seed=11))
sys.stdout.write(train_tokenizer(texts, TrainingSettings(vocab_size=1000)))
"""


def test_equal_bytes_in_any_process_on_any_number_of_threads() -> None:
    found = set()
    for threads in ("1", "2", "5"):
        child = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": os.getcwd()}
        child["TOKENIZERS_PARALLELISM"] = "false" if threads == "1" else "true"
        command = [sys.executable, "-c", _CHILD]
        found.add(subprocess.run(command, env=child, capture_output=True, check=True).stdout)
    assert len(found) == 1
    assert len(json.loads(found.pop())["model"]["vocab"]) == 999


def test_order_of_the_texts_does_not_matter(fold_texts: list[str]) -> None:
    settings = TrainingSettings(vocab_size=800)
    assert train_tokenizer(fold_texts, settings) == train_tokenizer(fold_texts[::-1], settings)


def test_what_is_saved_says_its_eos(trained: TokenizerDefinition) -> None:
    assert trained.vocab_size == 1500
    assert (trained.eos_token, trained.eos_id) == ("<|endoftext|>", 1499)
    config = json.loads(Path(trained.name).with_name("tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|endoftext|>"


def test_another_eos(tmp_path: Path, fold_texts: list[str]) -> None:
    settings = TrainingSettings(vocab_size=300, eos="<end>")
    path = save_tokenizer(tmp_path, train_tokenizer(fold_texts, settings), "<end>")
    assert load_definition(path).eos_token == "<end>"


def test_an_eos_that_is_a_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="eos 'end': this vocabulary has it for bytes"):
        train_tokenizer(["(end)" * 50], TrainingSettings(vocab_size=259, eos="end"))


def test_too_small_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="vocab_size 256: expected at least 257"):
        train_tokenizer([], TrainingSettings(vocab_size=256))


def test_too_little_text() -> None:
    with pytest.raises(InputError, match=r"enough pairs for \d+ tokens"):
        train_tokenizer(["a little"], TrainingSettings(vocab_size=1000))


def test_marks_stay_with_their_letters() -> None:
    """Vocalised Arabic takes fewer tokens where a word may hold its marks."""
    texts = ["العَرَبِيَّةُ لُغَةٌ جَمِيلَةٌ وَهِيَ لُغَةُ القُرْآنِ"] * 50
    tokens = {}
    for words in ("gpt2", "marks"):
        settings = TrainingSettings(vocab_size=280, words="gpt2" if words == "gpt2" else "marks")
        content = train_tokenizer(texts, settings)
        tokens[words] = len(_ids(content, texts[0]))
    assert tokens["marks"] < tokens["gpt2"]


def _ids(content: str, text: str) -> list[int]:
    from tokenizers import Tokenizer

    found: list[int] = Tokenizer.from_str(content).encode(text).ids
    return found


def test_fertility_per_source(gpt2: TokenizerDefinition) -> None:
    batches = [
        ("b", pa.array(["Hello world", ""])),
        ("a", pa.array(["naïve"])),
        ("b", pa.array([" Hello  world\n"])),
    ]
    rows = measure_fertility(batches, open_tokenizer(gpt2))
    assert rows == (
        Fertility(source="a", documents=1, text_bytes=6, characters=5, words=1, tokens=2),
        Fertility(source="b", documents=3, text_bytes=25, characters=25, words=4, tokens=6),
        Fertility(source="all", documents=4, text_bytes=31, characters=30, words=5, tokens=8),
    )
    assert rows[1].bytes_per_token == 25 / 6
    assert rows[1].tokens_per_word == 1.5
    assert (
        Fertility(
            source="none", documents=0, text_bytes=0, characters=0, words=0, tokens=0
        ).bytes_per_token
        == 0
    )
    assert (
        Fertility(
            source="none", documents=0, text_bytes=0, characters=0, words=0, tokens=0
        ).tokens_per_word
        == 0
    )


def test_special_tokens_come_before_the_eos_and_no_text_becomes_one(
    fold_texts: list[str], tmp_path: Path
) -> None:
    settings = TrainingSettings(vocab_size=400, special=("[MASK]", "<fim>"))
    save_tokenizer(tmp_path, train_tokenizer([*fold_texts, "[MASK] " * 50], settings))
    definition = load_definition(tmp_path)
    assert (definition.vocab_size, definition.eos_id) == (400, 399)
    assert definition.added_tokens == ("[MASK]", "<fim>", "<|endoftext|>")
    tokenizer = Tokenizer.from_str(definition.json)
    assert [tokenizer.token_to_id(t) for t in definition.added_tokens] == [397, 398, 399]
    text = pa.array(["a [MASK] and <fim>"])
    [ids] = tokenize_documents(text, open_tokenizer(definition)).to_pylist()
    assert max(ids[:-1]) < 397 and ids[-1] == 399


@pytest.mark.parametrize(
    ("special", "message"),
    [
        (("[MASK]", "[MASK]"), "each must be there once"),
        (("<|endoftext|>",), "each must be there once, EOS among them"),
        (("",), "none may be empty"),
        (("[MASK]",), "expected at least 258"),
        (("\udcff",), "expected UTF-8"),
    ],
)
def test_special_tokens_that_cannot_be(special: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_tokenizer([], TrainingSettings(vocab_size=257, special=special))
