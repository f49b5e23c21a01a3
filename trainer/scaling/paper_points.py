"""Losses that the paper prints, to draw beside one's own: Cerebras-GPT (arXiv 2304.03208).

Pile test loss in nats per GPT-2 token; the peers' losses are corrected to GPT-2 tokens there.
Training FLOPs are the paper's, two digits (Table 8 for its own models).
"""

from dataclasses import dataclass

from wafer_backend.performance_model.paper import TRAINING_FLOPS

RUN_TO_RUN = 0.0035
"""Relative standard deviation of the loss between runs that differ in the seed."""

SP_LOSS = {
    "111M": 2.608, "256M": 2.349, "590M": 2.181, "1.3B": 1.997, "2.7B": 1.834, "6.7B": 1.704,
    "13B": 1.572,
}  # fmt: skip
MUP_LOSS = {"111M": 2.588, "256M": 2.359, "590M": 2.155, "1.3B": 1.984, "2.7B": 1.846}


@dataclass(frozen=True)
class Point:
    """A trained model. `flops`: of training. `loss`: in nats per token."""

    name: str
    flops: float
    loss: float


def _own(losses: dict[str, float]) -> tuple[Point, ...]:
    return tuple(Point(name, TRAINING_FLOPS[name], loss) for name, loss in losses.items())


GROUPS = {
    "Cerebras-GPT": _own(SP_LOSS),
    "Cerebras-GPT muP": _own(MUP_LOSS),
    "Pythia": (
        Point("70M", 1.6e20, 2.504),
        Point("160M", 4.1e20, 2.186),
        Point("410M", 1.1e21, 1.971),
        Point("1B", 2.2e21, 1.845),
        Point("1.4B", 3.2e21, 1.793),
        Point("2.8B", 6.1e21, 1.720),
        Point("6.9B", 1.4e22, 1.626),
        Point("12B", 2.4e22, 1.582),
    ),
    "GPT-J": (Point("6.1B", 1.7e22, 1.613),),
    "GPT-NeoX": (Point("20B", 6.4e22, 1.519),),
}
"""The paper's own models and the peers on its axes, by family."""
