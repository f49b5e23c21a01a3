"""Tokenizers to test with, a cache of verdicts for the session, and the oracle's answer."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dedup.compiled import find_kernel_directory
from pipeline.core import zstd
from pipeline.tokenizers.battery import random_strings
from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer, tokenize_array
from pipeline.tokenizers.engines import Reference
from pipeline.tokenizers.training import TrainingSettings, save_tokenizer, train_tokenizer

Texts = list[str]


@pytest.fixture(scope="session")
def verdict_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for verdicts, with the compiled kernels of the user's."""
    directory = tmp_path_factory.mktemp("cache")
    if kernels := find_kernel_directory():
        kernels.parent.mkdir(parents=True, exist_ok=True)
        (directory / "kernels").symlink_to(kernels.parent)
    return directory


@pytest.fixture(scope="module", autouse=True)
def verdict_cache(verdict_directory: Path) -> Iterator[None]:
    """Verdicts of these tests never reach the user's cache. Of these alone: what other tests start
    would compile all kernels again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAFERMILL_CACHE", str(verdict_directory))
        yield


@pytest.fixture(scope="session")
def gpt2() -> TokenizerDefinition:
    return load_definition("gpt2")


@pytest.fixture(scope="session")
def fold_texts() -> Texts:
    """Texts full of contractions in every case and of scripts: merges reach into all of them."""
    endings = ("s", "S", "ſ", "t", "RE", "ll", "d")
    contractions = [f"I'{e} he'{e}x DON'{e}" for e in endings]
    return [*random_strings(3000, seed=11), *contractions * 40]


@pytest.fixture(scope="session", params=["gpt2", "marks"])
def trained(
    request: pytest.FixtureRequest, fold_texts: Texts, tmp_path_factory: pytest.TempPathFactory
) -> TokenizerDefinition:
    """A tokenizer trained on fuzz, with either kind of words."""
    settings = TrainingSettings(vocab_size=1500, words=request.param)
    content = train_tokenizer(fold_texts, settings)
    path = save_tokenizer(tmp_path_factory.mktemp(request.param), content)
    return load_definition(path)


@pytest.fixture(scope="session")
def check_equal() -> Callable[[TokenizerDefinition, Iterable[str]], int]:
    """Compare `tokenize_array` with the oracle, a million characters at a time (the oracle takes
    hundreds of bytes for each); returns the number of texts.
    """

    def check(definition: TokenizerDefinition, texts: Iterable[str]) -> int:
        tokenizer, oracle = open_tokenizer(definition), Reference(definition)
        done = held = 0
        pending: list[str] = []
        for text in texts:
            pending.append(text)
            held += len(text)
            if held > 1_000_000:
                done += _compare(tokenizer, oracle, pending)
                pending, held = [], 0
        return done + _compare(tokenizer, oracle, pending)

    return check


def _compare(tokenizer: TextTokenizer, oracle: Reference, texts: Texts) -> int:
    found = tokenize_array(pa.array(texts, pa.string()), tokenizer)
    expected = oracle.encode(texts)
    offsets, ids = found.offsets.to_numpy(), found.values.to_numpy()
    if not (np.array_equal(offsets, expected.offsets) and np.array_equal(ids, expected.ids)):
        for i, text in enumerate(texts):
            right = expected.ids[expected.offsets[i] : expected.offsets[i + 1]].tolist()
            assert found[i].as_py() == right, f"ids of {text!r}"
    assert tokenizer.definition.eos_id not in ids
    return len(texts)


@pytest.fixture(scope="session")
def all_strings() -> Callable[[Path], Iterator[str]]:
    """Every string of a file of the reference corpora: JSON values, and the text as it stands;
    the 64 MB of a bomb are cut to 4, because the oracle would take gigabytes for them.
    """

    def strings(path: Path) -> Iterator[str]:
        data = path.read_bytes()
        if path.suffix == ".zst":
            try:
                data = zstd.decompress(data)
            except zstd.ZstdError:
                return
        else:
            yield data.decode(errors="replace")
        for line in data.split(b"\n") if b".json" in path.name.encode() else []:
            try:
                yield from _values(json.loads(line))
            except (ValueError, RecursionError):
                continue

    return strings


def _values(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value[: 1 << 22].encode(errors="replace").decode()
    elif isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item)
