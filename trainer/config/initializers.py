"""Initializers of Model Zoo: the distributions that initial weights are drawn from."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.model import FrozenModel

Fan = Literal["fan_in", "fan_out", "fan_avg"]


class TruncatedNormal(FrozenModel):
    """Normal distribution cut to [a, b]."""

    name: Literal["truncated_normal"] = "truncated_normal"
    mean: float = Field(0.0, description="mean")
    std: float = Field(0.05, gt=0, description="standard deviation before truncation")
    a: float | None = Field(None, description="lower limit; default mean - 2 std")
    b: float | None = Field(None, description="upper limit; default mean + 2 std")


class Normal(FrozenModel):
    """Normal distribution."""

    name: Literal["normal"]
    mean: float = Field(0.0, description="mean")
    std: float = Field(0.05, gt=0, description="standard deviation")


class Uniform(FrozenModel):
    """Uniform distribution on [a, b)."""

    name: Literal["uniform"]
    a: float = Field(-0.05, description="lower bound")
    b: float = Field(0.05, description="upper bound")


class VarianceScaling(FrozenModel):
    """Variance v = scale / fan. normal: deviation sqrt(v), not cut. uniform: bounds
    ± sqrt(3 v). truncated_normal: deviation sqrt(v) / 0.8796 cut to [-2, 2], as in Model Zoo; for
    sqrt(v) far below 1 that cuts nothing."""

    name: Literal["variance_scaling"]
    scale: float = Field(1.0, gt=0, description="variance, multiplied by the fan")
    mode: Fan = Field("fan_in", description="which fan is used")
    distribution: Literal["normal", "truncated_normal", "uniform"] = Field(
        "truncated_normal", description="shape"
    )


class Lecun(FrozenModel):
    """Variance scaling with scale 1 and fan_in: truncated_normal, or uniform."""

    name: Literal["lecun_normal", "lecun_uniform"]


class Xavier(FrozenModel):
    """Variance scaling with scale gain ** 2 and fan_avg: normal, or uniform."""

    name: Literal["xavier_normal", "xavier_uniform", "glorot_normal", "glorot_uniform"]
    gain: float = Field(1.0, gt=0, description="factor for the standard deviation")


class Kaiming(FrozenModel):
    """Variance scaling with scale 2 / (1 + a ** 2), of relu 2: normal, or uniform."""

    name: Literal["kaiming_normal", "kaiming_uniform"]
    a: float = Field(0.0, description="slope of leaky_relu below 0")
    mode: Literal["fan_in", "fan_out"] = Field("fan_in", description="which fan is used")
    nonlinearity: Literal["leaky_relu", "relu"] = Field(
        "leaky_relu", description="nonlinearity that follows"
    )


class Fill(FrozenModel):
    """All weights 0, or all 1."""

    name: Literal["zeros", "ones"]


class ConstantValue(FrozenModel):
    """All weights `val`."""

    name: Literal["constant"]
    val: float = Field(description="the value")


FanScaled = VarianceScaling | Lecun | Xavier | Kaiming
"""Rules whose variance depends on the shape of a matrix."""

Initializer = Annotated[
    TruncatedNormal | Normal | Uniform | FanScaled | Fill | ConstantValue,
    Field(discriminator="name"),
]
