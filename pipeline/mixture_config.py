"""The config section `mixture`: how often documents of each source stand in the training split."""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pipeline.core.config_model import FrozenModel

MOST_EPOCHS = 1000
_COUNT_UNITS = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _count(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kMBT])", value)
    if not found:
        raise ValueError("expected a number of tokens such as 10000000 or '10B' (units k, M, B, T)")
    return int(Decimal(found[1]) * _COUNT_UNITS[found[2]])


Epochs = Annotated[float, Field(ge=0, le=MOST_EPOCHS, allow_inf_nan=False)]
MostEpochs = Annotated[float, Field(gt=0, le=MOST_EPOCHS, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_count), Field(ge=1)]


class MixtureConfig(FrozenModel):
    """Repeating and thinning out the training split by source: either `epochs` or `weights`."""

    epochs: dict[str, Epochs] | None = Field(
        None,
        description="by source label: how often each of its documents occurs; 2.5: all of them "
        "twice, and half of them, chosen by hash, a third time",
    )
    weights: dict[str, Weight] | None = Field(
        None, description="by source label: its share of the tokens, relative to the other weights"
    )
    default: Epochs | None = Field(
        None,
        description="epochs, or weight, of every source that is not named [default: 1 epoch; with "
        "weights every source must be named]",
    )
    tokens: Count | None = Field(
        None,
        description="with weights: tokens of the training split, such as 10B [default: as many as "
        "max_epochs allows]",
    )
    max_epochs: MostEpochs | None = Field(
        None,
        description="with weights: most epochs of any source; more is an error [default: 1 without "
        "tokens, else no limit]",
    )

    @model_validator(mode="after")
    def _one_way(self) -> "MixtureConfig":
        if self.epochs is not None and self.weights is not None:
            raise ValueError("expected either epochs or weights, not both")
        if self.weights is None and (self.tokens is not None or self.max_epochs is not None):
            raise ValueError("tokens and max_epochs are only for weights")
        if self.weights is not None and not sum(self.weights.values()) + (self.default or 0):
            raise ValueError("expected a weight above 0")
        return self
