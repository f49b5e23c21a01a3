"""The parts of a planned run, as `train plan --json` prints them; names and units are stable."""

from dataclasses import dataclass

from trainer.plan_inference import Use
from trainer.recipe import Schedule


@dataclass(frozen=True)
class ModelPlan:
    """`shipped_config`: the nearest of the shipped configs, with its parameters."""

    parameters: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    filter_size: int
    vocab_size: int
    max_position_embeddings: int
    shipped_config: str | None
    shipped_parameters: int | None


@dataclass(frozen=True)
class TrainingPlan:
    """`learning_rate`: peak. `adam_eps`: 0 for an optimizer without. `source`: where batch and
    learning rate are from."""

    tokens: int
    tokens_per_parameter: float
    steps: int
    samples: int
    batch_size_schedule: Schedule
    learning_rate: float
    warmup_steps: int
    decay: str
    adam_eps: float
    parametrization: str
    source: str


@dataclass(frozen=True)
class ComputePlan:
    """FLOPs of P Table 13; `ratio_to_6nd`: to 6 per parameter and token."""

    training_flops_per_sequence: int
    training_flops: float
    inference_flops_per_token: float
    ratio_to_6nd: float


@dataclass(frozen=True)
class LossPlan:
    """Pile test loss in nats per GPT-2 token.

    `compute_optimal`: eq 1 at these FLOPs. `degradation`: eq 4. `compute_optimal_flops`: what would
    reach `predicted` at 20 tokens per parameter. `extrapolated`: the FLOPs lie outside those that
    eq 1 was fitted on.
    """

    predicted: float
    compute_optimal: float
    degradation: float
    compute_optimal_flops: float
    extrapolated: bool


@dataclass(frozen=True)
class InferencePlan:
    """Training and use together (eq 2). `optimum`: the family's cheapest model of the same loss."""

    tokens: float
    this: Use
    optimum: Use | None


@dataclass(frozen=True)
class ClusterPlan:
    """Simulated, never measured. `days`, `utilisation`: of the whole run. `seconds_per_step`: of
    the last batch size."""

    simulated: bool
    num_csx: int
    days: float
    seconds_per_step: float
    utilisation: float
    caveat: str


@dataclass(frozen=True)
class DiskPlan:
    """Bytes. `data`: HDF5 `sample` files of one epoch, gzip; `data_uncompressed`: without.
    `checkpoints` stand at once, one of them being written."""

    data: int
    data_uncompressed: int
    checkpoint: int
    checkpoints: int


@dataclass(frozen=True)
class DataPlan:
    """The data set at hand. `tokens`: rows times MSL. `epochs`: passes that the run makes."""

    directory: str
    rows: int
    tokens: int
    bytes: int
    vocab_size: int
    max_sequence_length: int
    epochs: float


@dataclass(frozen=True)
class RunPlan:
    """A planned run; `dataclasses.asdict` of it is what `train plan --json` prints."""

    model: ModelPlan
    training: TrainingPlan
    compute: ComputePlan
    loss: LossPlan
    inference: InferencePlan | None
    cluster: ClusterPlan
    disk: DiskPlan
    data: DataPlan | None
    notes: tuple[str, ...]
