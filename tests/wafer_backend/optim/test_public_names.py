"""The exported names of optim are a promise, and each is documented."""

import re
from pathlib import Path

from wafer_backend import optim

OPTIMIZERS = [
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Lion"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
]
SCHEDULES = [
    *("Chained", "Constant", "CosineAnnealing", "CosineDecay", "Cyclic", "Exponential"),
    *("InverseExponentialTimeDecay", "InverseSquareRootDecay", "Lambda", "Linear", "MultiStep"),
    *("Multiplicative", "OneCycle", "PiecewiseConstant", "Polynomial", "ScalePerParam"),
    *("Sequential", "Step"),
]
OTHERS = [
    *("ChainedScheduler", "CosineAnnealingWarmRestarts", "CosineAnnealingWarmRestartsWD"),
    *("FormLR", "LRScheduler", "Optimizer", "ParameterwiseOptimizer", "Scheduler", "WDScheduler"),
    *("configure_lr_scheduler", "configure_optimizer", "lr_scheduler", "weight_decay_scheduler"),
]


def test_exported_names() -> None:
    schedulers = [f"{name}{kind}" for name in SCHEDULES for kind in ("LR", "WD")]
    assert set(optim.__all__) >= {*OPTIMIZERS, *schedulers, *OTHERS}
    assert len(optim.__all__) == len(set(optim.__all__))
    assert all(hasattr(optim, name) for name in optim.__all__)


def test_learning_rate_schedulers_are_in_their_module() -> None:
    for name in (*(f"{name}LR" for name in SCHEDULES), "CosineAnnealingWarmRestarts"):
        assert getattr(optim.lr_scheduler, name) is getattr(optim, name)


def test_every_name_is_documented() -> None:
    docs = Path(__file__).parents[3] / "docs"
    pages = [docs / "optimizers.md", docs / "train_configuration.md"]
    written = set(re.findall(r"`(\w+)[`(]", "".join(page.read_text("utf-8") for page in pages)))
    named = {
        name.removesuffix("WD") + "LR" if name.endswith("WD") else name for name in optim.__all__
    }
    named.discard("CosineAnnealingWarmRestartsLR")
    assert named - written == set()


def test_tests_that_the_page_names_exist() -> None:
    root = Path(__file__).parents[3]
    text = (root / "docs" / "optimizers.md").read_text(encoding="utf-8")
    for file, test in re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", text):
        source = (root / "tests" / "wafer_backend" / "optim" / file).read_text(encoding="utf-8")
        assert f"def {test}" in source
