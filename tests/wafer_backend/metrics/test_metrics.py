"""Metrics against plain loops over all samples, for any way of cutting them into batches."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from wafer_backend import backends, compile, metrics
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendConfigError

CLASSES = 4


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


class Reference:
    """Sums over (label, prediction, weight), by hand."""

    def __init__(self, labels: list[int], predictions: list[int], weights: list[float]) -> None:
        self.rows = list(zip(labels, predictions, weights, strict=True))

    def of(self, keep: Callable[[int, int], bool]) -> float:
        return sum(w for label, prediction, w in self.rows if keep(label, prediction))

    def right(self, c: int) -> float:
        return self.of(lambda label, prediction: label == prediction == c)

    def labelled(self, c: int) -> float:
        return self.of(lambda label, _: label == c)

    def predicted(self, c: int) -> float:
        return self.of(lambda _, prediction: prediction == c)

    def mean(
        self,
        value: Callable[[int], float],
        below: Callable[[int], float],
        ignored: Sequence[int] = (),
    ) -> float:
        classes = [c for c in range(CLASSES) if c not in ignored]
        return mean([value(c) / below(c) for c in classes if below(c) > 0])

    def either(self, c: int) -> float:
        return self.labelled(c) + self.predicted(c)

    def accuracy(self) -> float:
        total = self.of(lambda *_: True)
        return self.of(lambda label, prediction: label == prediction) / total if total else math.nan

    def per_class(self) -> float:
        return self.mean(self.right, self.labelled)

    def iou(self, ignored: Sequence[int] = ()) -> float:
        return self.mean(self.right, lambda c: self.either(c) - self.right(c), ignored)

    def dice(self, ignored: Sequence[int] = ()) -> float:
        return self.mean(lambda c: 2 * self.right(c), self.either, ignored)

    def f2(self, ignored: Sequence[int] = ()) -> float:
        below = {c: 4 * self.labelled(c) + self.predicted(c) for c in range(CLASSES)}
        scores = [5 * self.right(c) / below[c] if below[c] else 0.0
                  for c in below if c not in ignored]  # fmt: skip
        return mean(scores)

    def f1_micro(self, ignored: Sequence[int] = ()) -> float:
        classes = [c for c in range(CLASSES) if c not in ignored]
        below = sum(self.either(c) for c in classes)
        return 2 * sum(map(self.right, classes)) / below if below else 0.0


REFERENCES: dict[str, tuple[Callable[[], metrics.Metric], Callable[[Reference], float]]] = {
    "accuracy": (metrics.Accuracy, Reference.accuracy),
    "per_class": (lambda: metrics.MeanPerClassAccuracy(CLASSES), Reference.per_class),
    "iou": (lambda: metrics.MeanIOU(CLASSES), Reference.iou),
    "iou_of_some": (lambda: metrics.MeanIOUMetric(CLASSES, [0, 2]), lambda r: r.iou([0, 2])),
    "dice": (lambda: metrics.Dice(CLASSES), Reference.dice),
    "dice_of_some": (
        lambda: metrics.DiceCoefficientMetric(CLASSES, ignore_classes=[1], name="eval/dice"),
        lambda r: r.dice([1]),
    ),
    "f2": (lambda: metrics.FBeta(CLASSES, 2.0, "macro"), Reference.f2),
    "f2_of_some": (lambda: metrics.FBeta(CLASSES, 2.0, "macro", [1, 3]), lambda r: r.f2([1, 3])),
    "f1_micro": (lambda: metrics.FBeta(CLASSES), Reference.f1_micro),
    "f1_micro_of_some": (
        lambda: metrics.FBeta(CLASSES, ignore_labels=[0]),
        lambda r: r.f1_micro([0]),
    ),
}
rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1, max_size=30,
)  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
@given(rows=rows, cut=st.integers(1, 30))
def test_against_a_plain_loop(name: str, rows: list[Any], cut: int) -> None:
    make, reference = REFERENCES[name]
    metric = make()
    for start in range(0, len(rows), cut):
        labels, predictions, weights = zip(*rows[start : start + cut], strict=True)
        metric(
            labels=torch.tensor(labels),
            predictions=torch.tensor(predictions),
            weights=torch.tensor(weights),
        )
    labels, predictions, weights = map(list, zip(*rows, strict=True))
    expected = reference(Reference(labels, predictions, weights))
    assert float(metric) == pytest.approx(expected, nan_ok=True)


@given(st.integers(0, 1000), st.integers(1, 12))
def test_language_model(seed: int, cut: int) -> None:
    """Perplexity from logits, or from summed losses; accuracy from logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, 5, 7, generator=generator)
    labels = torch.randint(7, (12, 5), generator=generator)
    weights = torch.randint(2, (12, 5), generator=generator).float()
    weights[0, 0] = 1
    nats = F.cross_entropy(logits.transpose(1, 2).double(), labels, reduction="none")
    expected = math.exp(float((nats * weights).sum() / weights.sum()))
    by_logits, by_loss = metrics.Perplexity(), metrics.Perplexity()
    accuracy = metrics.Accuracy()
    for start in range(0, 12, cut):
        part = slice(start, start + cut)
        given = {"labels": labels[part], "weights": weights[part]}
        by_logits(**given, logits=logits[part])
        by_loss(**given, loss=(nats * weights)[part].sum(), dtype=torch.float32)
        accuracy(**given, predictions=logits[part])
    right = (logits.argmax(-1) == labels) * weights
    assert float(by_logits) == pytest.approx(expected)
    assert float(by_loss) == pytest.approx(expected)
    assert float(accuracy) == pytest.approx(float(right.sum() / weights.sum()))


@given(st.integers(0, 1000), st.integers(1, 5))
def test_ranking(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(6, 5, generator=generator)
    labels = torch.randint(2, (6, 5), generator=generator)
    labels[0, 0] = 1
    hits = 0
    for row in range(6):
        best = sorted(range(5), key=lambda c: -float(scores[row, c]))[:k]
        hits += sum(int(labels[row, c]) for c in best)
    precision, recall = metrics.PrecisionAtK(k), metrics.RecallAtK(k)
    for start in range(0, 6, 2):
        precision(labels[start : start + 2], scores[start : start + 2])
        recall(labels[start : start + 2], scores[start : start + 2])
    assert float(precision) == pytest.approx(hits / (6 * k))
    assert float(recall) == pytest.approx(hits / int(labels.sum()))


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 10), st.sampled_from([0.5, 1.0])), min_size=1),
    st.integers(1, 5),
)
def test_area_under_the_curve(rows: list[tuple[bool, int, float]], cut: int) -> None:
    """Over pairs of a right and a wrong sample; probabilities are points of the grid."""
    metric = metrics.AUC(11)
    for start in range(0, len(rows), cut):
        right, tenths, weights = zip(*rows[start : start + cut], strict=True)
        metric(
            labels=torch.tensor(right).long(),
            predictions=torch.tensor(tenths) / 10,
            weights=torch.tensor(weights),
        )
    won = pairs = 0.0
    for _, high, heavy in (row for row in rows if row[0]):
        for _, low, light in (row for row in rows if not row[0]):
            won += heavy * light * (1.0 if high > low else 0.5 if high == low else 0.0)
            pairs += heavy * light
    assert float(metric) == pytest.approx(won / pairs if pairs else math.nan, nan_ok=True)


def test_area_under_the_curve_of_a_fine_grid() -> None:
    """Right samples have density 2p and wrong ones 2(1 - p): the area is 5/6."""
    p = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    metric = metrics.AUC(num_thresholds=1000)
    metric(torch.ones_like(p), p, weights=p)
    metric(torch.zeros_like(p), p, weights=1 - p)
    assert float(metric) == pytest.approx(5 / 6, abs=1e-6)


def test_mean() -> None:
    metric = metrics.Mean("loss")
    metric(torch.tensor([1.0, 2.0]), weights=torch.tensor([1.0, 3.0]))
    metric(5.0)
    assert float(metric) == pytest.approx((1 + 6 + 5) / 5)


def test_labels_outside_the_classes_do_not_count() -> None:
    metric = metrics.MeanIOU(2)
    metric(labels=torch.tensor([0, 1, -100, 7]), predictions=torch.tensor([0, 1, 1, 1]))
    assert float(metric) == 1


def test_sums_keep_float64() -> None:
    """A million and one in bf16 would be a million; casting the model does not cast sums."""
    model = nn.Sequential(nn.Linear(2, 2), metrics.Mean())
    model.to(torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16
    model[1](torch.tensor([1e6, 1.0], dtype=torch.float32))
    assert float(model[1]) == 500000.5
    assert model[1].total.dtype == torch.float64  # type: ignore[union-attr]
    assert "1.total" not in model.state_dict()


def test_reset_and_nothing_counted() -> None:
    metric = metrics.Accuracy()
    assert math.isnan(float(metric))
    metric(torch.tensor([1]), torch.tensor([1]))
    state = metric.part
    metric.reset()
    assert math.isnan(float(metric))
    assert metric.part is state  # the same buffer, wherever it is streamed from


def test_a_metric_of_ones_own() -> None:
    class Largest(metrics.Metric):
        def reset(self) -> None:
            self.register_state("largest", torch.tensor(-1.0))

        def update(self, value: torch.Tensor) -> None:
            self.largest.copy_(torch.maximum(self.largest, value.max()))  # type: ignore[operator]

        def compute(self) -> torch.Tensor:
            return self.largest  # type: ignore[return-value]

    metric = Largest("largest")
    metric(torch.tensor([3.0, 1.0]))
    assert float(metric(torch.tensor([2.0]))) == 3
    metric.reset()
    assert float(metric) == -1
    assert [found for name, found in metrics.get_all_metrics() if name == "largest"] == [metric]
    metric(torch.tensor([4.0]))
    assert metrics.compute_all_metrics()["largest"] == 4


def test_names_and_wrong_settings() -> None:
    assert metrics.AccuracyMetric is metrics.Accuracy
    assert metrics.AccuracyMetric(name="eval/accuracy").name == "eval/accuracy"
    assert metrics.AUCMetric is metrics.AUC
    with pytest.raises(BackendConfigError, match="AUC: num_thresholds = 1: expected at least 2"):
        metrics.AUC(1)
    with pytest.raises(BackendConfigError, match="Dice: there is no class 4 to ignore"):
        metrics.Dice(4, ignore_classes=[4])
    with pytest.raises(BackendConfigError, match="Perplexity: give loss"):
        metrics.Perplexity()(torch.tensor([1]))


class Evaluated(nn.Module):
    """A language model with metrics inside, as users write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.accuracy, self.perplexity = metrics.Accuracy(), metrics.Perplexity()

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, labels, weights = batch
        logits = self.head(self.embedding(inputs))
        nats = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none") * weights
        if not self.training:
            self.accuracy(labels=labels, predictions=logits, weights=weights)
            self.perplexity(labels=labels, loss=nats.sum(), weights=weights)
        return nats.mean()


def test_in_a_compiled_module_for_any_num_csx() -> None:
    generator = torch.Generator().manual_seed(3)
    shape = (12, 6)
    data = [
        [torch.randint(11, shape, generator=generator) for _ in range(2)]
        + [torch.rand(shape, generator=generator)]
        for _ in range(3)
    ]
    found = set()
    for num_csx in (1, 2, 3, 5):
        backends.reset_backend()
        backends.backend("CSX", cluster_config=ClusterConfig(num_csx=num_csx))
        model = Evaluated()
        compiled = compile(model, "CSX")
        compiled.eval()
        with torch.no_grad():
            for batch in data:
                compiled(batch)
        found.add((float(model.accuracy).hex(), float(model.perplexity).hex()))
    backends.reset_backend()
    plain = Evaluated().eval()
    for batch in data:
        plain(batch)
    assert len(found) == 1
    accuracy, perplexity = map(float.fromhex, found.pop())
    assert accuracy == pytest.approx(float(plain.accuracy))
    assert perplexity == pytest.approx(float(plain.perplexity), rel=1e-6)
