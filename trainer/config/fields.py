"""Types that several sections of `params.yaml` share."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.core.config_model import FrozenModel

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class TruncatedNormal(FrozenModel):
    """Normal distribution cut to [a, b]."""

    name: Literal["truncated_normal"] = "truncated_normal"
    mean: float = Field(0.0, description="mean")
    std: float = Field(0.02, gt=0, description="standard deviation before cutting")
    a: float | None = Field(None, description="lower cut; default mean - 2 std")
    b: float | None = Field(None, description="upper cut; default mean + 2 std")
