"""Section `sparsity`: which weights are pruned, how many of them, and when masks change.

Keys and defaults are those of `wafer_backend.sparse` (docs/sparsity.md). A section is a list of
groups; a parameter belongs to the first whose filter takes it.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pipeline.config.model import FrozenModel
from trainer.config.model import Count

Level = Annotated[float, Field(ge=0, le=1)]


class ConstantLevel(FrozenModel):
    """The same at every step; a number stands for it."""

    type: Literal["constant"]
    value: Level = Field(description="share of weights")


class LinearLevel(FrozenModel):
    """init + slope * step."""

    type: Literal["linear"]
    init: float = Field(description="share at step 0")
    slope: float = Field(description="change per step")


class ExpLevel(FrozenModel):
    """final + (init - final) * exp(gamma * step)."""

    type: Literal["exp"]
    init: float = Field(description="share at step 0")
    gamma: float = Field(
        description="rate per step; with a negative rate the share approaches final"
    )
    final: float = Field(1.0, description="limit")


class PowerLevel(FrozenModel):
    """init * beta ** step."""

    type: Literal["power"]
    init: float = Field(description="share at step 0")
    beta: float = Field(description="factor per step")


class CosineLevel(FrozenModel):
    """From init to minimum and back along a cosine."""

    type: Literal["cosine"]
    init: float = Field(description="share at step 0")
    half_period: float = Field(gt=0, description="steps from init to minimum")
    minimum: float = Field(0.0, description="smallest share")


class CyclingLevel(FrozenModel):
    """The next of its values at every update of the masks; a list stands for it."""

    type: Literal["cycling"]
    values: tuple[Level, ...] = Field(
        min_length=1, description="shares, starting with that of step 0"
    )


def _schedule(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"type": "constant", "value": value}
    if isinstance(value, list | tuple):
        return {"type": "cycling", "values": tuple(value)}
    if isinstance(value, dict):
        changed: dict[str, Any] = {"type": str(value.get("type", "")).lower()}
        if isinstance(value.get("values"), list):
            changed["values"] = tuple(value["values"])
        return {**value, **changed}
    return value


LevelSchedule = Annotated[
    ConstantLevel | LinearLevel | ExpLevel | PowerLevel | CosineLevel | CyclingLevel,
    Field(discriminator="type"),
    BeforeValidator(_schedule),
]
"""A share of weights at every step; values outside [0, 1] are clamped."""


class UpdateSchedule(FrozenModel):
    """Steps after which masks change: start, start + freq, ... before stop; or those listed."""

    freq: Count = Field(1, description="steps between updates")
    start: int = Field(0, ge=0, description="step of the first update, but not before step 1")
    stop: Count | None = Field(None, description="no updates from this step on; null: no limit")
    steps: tuple[Count, ...] | None = Field(
        None, description="the steps at which masks are updated, instead of freq, start and stop"
    )

    @model_validator(mode="after")
    def _one_way(self) -> "UpdateSchedule":
        if self.steps is not None and (self.freq, self.start, self.stop) != (1, 0, None):
            raise ValueError("give steps, or freq, start and stop, not both")
        return self


class SparsityConfig(FrozenModel):
    """What every group of section `sparsity` has."""

    algorithm: str
    init_method: Literal["random", "topk", "from_zeros", "checkerboard"] = Field(
        "random",
        description="how the first masks are chosen: random; topk: the largest weights stay; "
        "from_zeros: weights that are not 0 stay; checkerboard: a regular pattern",
    )
    seed: int | None = Field(
        None, ge=0, description="seed of its random choices (ours); null: runconfig.seed"
    )
    param_filter: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="globs for names of parameters, ours or those of Model Zoo; null: all matrices "
        "except embeddings and read-out",
    )
    param_name_patterns: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="regular expressions that match a part of such names (R2.0, R2.1)",
    )

    @field_validator("param_name_patterns")
    @classmethod
    def _one_filter(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("param_filter") is not None:
            raise ValueError("the same setting as param_filter; give only one of them")
        return value


class StaticConfig(SparsityConfig):
    """A group of section `sparsity` whose first masks stay."""

    algorithm: Literal["static"] = "static"
    sparsity: Level = Field(description="share of weights to prune")


class GMPConfig(SparsityConfig):
    """A group of section `sparsity` with gradual magnitude pruning: the largest weights stay."""

    algorithm: Literal["gmp"] = "gmp"
    sparsity: LevelSchedule = Field(description="share of weights to prune")
    update: UpdateSchedule = UpdateSchedule()


_DROPPED = ConstantLevel(type="constant", value=0.3)
_DROP = "share of the active weights that an update drops, smallest first"


class SETConfig(SparsityConfig):
    """A group of section `sparsity` with SET: other weights grow at random."""

    algorithm: Literal["set"] = "set"
    sparsity: LevelSchedule = Field(description="share of weights to prune")
    update: UpdateSchedule = UpdateSchedule()
    drop_fraction: LevelSchedule = Field(_DROPPED, description=_DROP)


class RigLConfig(SparsityConfig):
    """A group of section `sparsity` with RigL: others grow where the dense gradient is largest."""

    algorithm: Literal["rigl"] = "rigl"
    sparsity: LevelSchedule = Field(description="share of weights to prune")
    update: UpdateSchedule = UpdateSchedule()
    drop_fraction: LevelSchedule = Field(_DROPPED, description=_DROP)
    balance_in_groups: Count | None = Field(
        None,
        description="number of equal groups of inputs that each keep the same number of weights",
    )
    balance_out_groups: Count | None = Field(
        None,
        description="number of equal groups of outputs that each keep the same number of weights",
    )

    @field_validator("balance_out_groups")
    @classmethod
    def _one_balance(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("balance_in_groups") is not None:
            raise ValueError("expected one of balance_in_groups and balance_out_groups")
        return value


_ALL: tuple[type[SparsityConfig], ...] = (StaticConfig, GMPConfig, SETConfig, RigLConfig)
ALGORITHMS = {str(kind.model_fields["algorithm"].default): kind for kind in _ALL}


def _algorithm(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("algorithm", "static")
    return getattr(value, "algorithm", None)


SparsityGroup = Annotated[
    Annotated[StaticConfig, Tag("static")]
    | Annotated[GMPConfig, Tag("gmp")]
    | Annotated[SETConfig, Tag("set")]
    | Annotated[RigLConfig, Tag("rigl")],
    Discriminator(
        _algorithm,
        custom_error_type="algorithm",
        custom_error_message=f"expected an algorithm of {', '.join(ALGORITHMS)}",
    ),
]
"""One group, by `algorithm`; static where it is not given."""
