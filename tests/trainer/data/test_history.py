"""What run.json says of a run whose data sets had documents masked on the way."""

from pathlib import Path
from typing import Any

from trainer.config import MixturePart, ModelConfig, TrainInput
from trainer.data import SampleSource, datasets_from, is_continued_by, open_training

from .conftest import Make


def opened(model: ModelConfig, *places: Path, weight: float = 2) -> SampleSource:
    parts = tuple(MixturePart(data_dir=place, weight=weight) for place in places)
    return open_training(TrainInput(batch_size=4, mixture=parts), model)


def versions(entries: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(e["from_step"], e["part"], e["dataset_hash"]) for e in entries]


def test_one_part_of_a_mixture_is_masked(make: Make, model: ModelConfig) -> None:
    a, b = make("a", 6, dataset_hash="a0"), make("b", 4, dataset_hash="b0", first=900)
    before = opened(model, a, b).describe()
    assert datasets_from(None, before, 0) == before
    masked = make("b1", 4, dataset_hash="b1", ancestors=["b0"], takedowns=["t"], first=900)
    source = opened(model, a, masked)
    assert is_continued_by(before, source)
    now = datasets_from(before, source.describe(), 7)
    assert versions(now) == [(1, 0, "a0"), (1, 1, "b0"), (8, 1, "b1")]
    assert is_continued_by(now, source)
    assert datasets_from(now, source.describe(), 9) == now
    assert versions(datasets_from(now, source.describe(), 3)) == [
        (1, 0, "a0"), (1, 1, "b0"), (4, 1, "b1")
    ]  # fmt: skip
    assert not is_continued_by(now, opened(model, a, b)), "the data before the takedown"


def test_what_is_another_run(make: Make, model: ModelConfig) -> None:
    a, b = make("a", 6, dataset_hash="a0"), make("b", 6, dataset_hash="b0", first=900)
    before = opened(model, a, b).describe()
    assert not is_continued_by(before, opened(model, b, a)), "another order of the list"
    assert not is_continued_by(before, opened(model, a))
    assert not is_continued_by(before, opened(model, a, b, weight=1.5))
    fewer = make("c", 5, dataset_hash="c", ancestors=["b0"], first=900)
    assert not is_continued_by(before, opened(model, a, fewer))
    assert is_continued_by(before, opened(model, a, b))
