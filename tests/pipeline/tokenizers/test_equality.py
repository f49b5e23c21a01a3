"""Ids equal the oracle's: `tokenizers` with special tokens read as text."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.tokenizers.battery import any_code_points, random_strings, take_evenly, token_texts
from pipeline.tokenizers.definition import (
    TokenizerDefinition,
    load_definition,
    reference_tokenizer,
)
from pipeline.tokenizers.engine import open_tokenizer, tokenize_array, tokenize_documents
from pipeline.tokenizers.training import TrainingSettings, save_tokenizer, train_tokenizer
from tests.slow import mark_slow

Check = Callable[[TokenizerDefinition, Iterable[str]], int]
EOS = "<|endoftext|>"
COUNTS = mark_slow([6_000, 20_000], 20_000)


def fuzz(definition: TokenizerDefinition, count: int, seed: int) -> Iterator[str]:
    """Three of four strings from scripts, pieces and tokens, one from all of Unicode."""
    vocabulary = token_texts(reference_tokenizer(definition))
    extra = [*definition.added_tokens * 50, *take_evenly(vocabulary, 20_000)]
    yield from random_strings(count - count // 4, seed, extra)
    yield from any_code_points(count // 4, seed)


@pytest.mark.parametrize("count", COUNTS)
def test_strings(count: int, gpt2: TokenizerDefinition, check_equal: Check) -> None:
    assert check_equal(gpt2, fuzz(gpt2, count, seed=21)) == count


@pytest.mark.parametrize("count", COUNTS)
def test_strings_of_a_trained_tokenizer(
    count: int, trained: TokenizerDefinition, check_equal: Check
) -> None:
    assert check_equal(trained, fuzz(trained, count, seed=22)) == count


@pytest.mark.parametrize("text", [EOS, EOS * 3, f"a{EOS}b", f" {EOS} ", "<|endoftext", "|>", ""])
def test_special_strings_are_text(
    text: str, gpt2: TokenizerDefinition, trained: TokenizerDefinition, check_equal: Check
) -> None:
    check_equal(gpt2, [text])
    check_equal(trained, [text])


def test_known_ids() -> None:
    found = tokenize_array(pa.array(["Hello world", " Hello world", "\n\n", EOS]), open_tokenizer())
    assert found.to_pylist() == [
        [15496, 995], [18435, 995], [628], [27, 91, 437, 1659, 5239, 91, 29],
    ]  # fmt: skip


def test_long_runs(gpt2: TokenizerDefinition, check_equal: Check) -> None:
    runs = (c * n for c in " a\n中😀0=" for n in (4095, 4096, 4097, 65_535, 100_001))
    assert check_equal(gpt2, runs) == 35


@pytest.mark.shared_data
def test_published_ids(shared_data: Path) -> None:
    """Where the published ids hold EOS they read the string as a token; we read it as text."""
    known = json.loads((shared_data / "gpt2/known_ids.json").read_bytes())
    plain = [case for case in known if EOS not in case["text"]]
    tokenizer = open_tokenizer(shared_data / "gpt2/tokenizer.json")
    found = tokenize_array(pa.array([case["text"] for case in plain]), tokenizer)
    assert found.to_pylist() == [case["ids"] for case in plain]


@pytest.mark.shared_data
def test_hostile_files(
    shared_data: Path,
    gpt2: TokenizerDefinition,
    check_equal: Check,
    all_strings: Callable[[Path], Iterator[str]],
) -> None:
    paths = sorted((shared_data / "hostile").iterdir())
    small = [path for path in paths if path.stat().st_size < 50_000 and "bomb" not in path.name]
    texts = itertools.chain.from_iterable(map(all_strings, small))
    assert check_equal(gpt2, texts) > 500


@pytest.mark.shared_data
def test_pile_sample(
    shared_data: Path,
    gpt2: TokenizerDefinition,
    check_equal: Check,
    all_strings: Callable[[Path], Iterator[str]],
) -> None:
    texts = [t for t in all_strings(shared_data / "pile_sample/05.jsonl.zst") if len(t) < 20_000]
    assert check_equal(gpt2, texts[::20]) > 300


@pytest.mark.slow
@pytest.mark.shared_data
def test_everything_shared(
    shared_data: Path,
    gpt2: TokenizerDefinition,
    check_equal: Check,
    all_strings: Callable[[Path], Iterator[str]],
) -> None:
    files = sorted(path for path in shared_data.rglob("*") if path.is_file())
    assert check_equal(gpt2, itertools.chain.from_iterable(map(all_strings, files))) > 100_000


@pytest.mark.slow
def test_every_code_point(
    gpt2: TokenizerDefinition, trained: TokenizerDefinition, check_equal: Check
) -> None:
    """Each between letters, digits, spaces and before a contraction."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    for definition in (gpt2, trained):
        texts = (f"a{chr(p)}1{chr(p)}  {chr(p)}'s {chr(p)}{chr(p)}" for p in points)
        assert check_equal(definition, texts) == 0x110000 - 0x800


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(4))
def test_a_million_strings(piece: int, gpt2: TokenizerDefinition, check_equal: Check) -> None:
    assert check_equal(gpt2, fuzz(gpt2, 250_000, seed=100 + piece)) == 250_000


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("piece", range(4))
def test_a_million_strings_of_a_trained_tokenizer(
    piece: int, bilingual: TokenizerDefinition, check_equal: Check
) -> None:
    assert check_equal(bilingual, fuzz(bilingual, 250_000, seed=200 + piece)) == 250_000


@pytest.fixture(scope="module")
def bilingual(
    shared_data: Path,
    tmp_path_factory: pytest.TempPathFactory,
    all_strings: Callable[[Path], Iterator[str]],
) -> TokenizerDefinition:
    """16,384 tokens, trained on a shard of the pile sample (Arabic and English)."""
    texts = all_strings(shared_data / "pile_sample/04.jsonl.zst")
    content = train_tokenizer(texts, TrainingSettings(vocab_size=16_384, words="marks"))
    return load_definition(save_tokenizer(tmp_path_factory.mktemp("bilingual"), content))


def test_documents_end_with_eos(gpt2: TokenizerDefinition) -> None:
    texts = ["Hello world", "", "x"]
    found = tokenize_documents(pa.array(texts), open_tokenizer(gpt2))
    assert found.type == pa.large_list(pa.uint16())
    assert found.to_pylist() == [[15496, 995, 50256], [50256], [87, 50256]]
