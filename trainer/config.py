"""The config of a run: Model Zoo R2.2 `params.yaml` sections as frozen, typed data.

Key names are Model Zoo's; keys that are ours are marked so. A value Model Zoo knows and we do not
yet is refused by the type, never ignored.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.config_model import Bytes, FrozenModel, parse
from pipeline.core.errors import ConfigError
from pipeline.core.strict_yaml import Loaded, load
from pipeline.shipped import find_config
from wafer_backend.activations import ActivationRule
from wafer_backend.precision import Precision

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]


class TruncatedNormal(FrozenModel):
    """Normal distribution cut to [a, b]."""

    name: Literal["truncated_normal"] = "truncated_normal"
    mean: float = Field(0.0, description="mean")
    std: float = Field(0.02, gt=0, description="standard deviation before cutting")
    a: float | None = Field(None, description="lower cut; default mean - 2 std")
    b: float | None = Field(None, description="upper cut; default mean + 2 std")


class InputConfig(FrozenModel):
    """What `train_input` and `eval_input` share: where samples come from."""

    data_processor: Literal["GptHDF5DataProcessor"] = "GptHDF5DataProcessor"
    data_dir: Path | None = Field(
        None, description="directory of .h5 shards with data_params.json, relative to this file"
    )
    batch_size: Count = Field(description="global batch in sequences, over all CS-2 systems")
    micro_batch_size: Count | Literal["auto"] = Field(
        "auto",
        description="sequences of one leaf; auto: the largest that fits runconfig.wafer_memory and "
        "leaves runconfig.min_leaves leaves; never depends on num_csx",
    )


class TrainInput(InputConfig):
    """Section `train_input`. Rows are read in the keyed order of `pipeline.core.order`."""

    shuffle: Literal[True] = Field(True, description="the keyed order; there is no other")
    shuffle_seed: int | None = Field(None, ge=0, description="of the order; default runconfig.seed")


class EvalInput(InputConfig):
    """Section `eval_input`. Rows are read once, in file order; the last batch may be short."""

    shuffle: Literal[False] = Field(False, description="evaluation reads file order")


class ModelConfig(FrozenModel):
    """Section `model`: a GPT-2-like decoder."""

    vocab_size: Count = Field(description="entries of the vocabulary; must equal the data set's")
    max_position_embeddings: Count = Field(description="MSL in tokens; must equal the data set's")
    hidden_size: Count = Field(description="width of the residual stream")
    num_hidden_layers: Count = Field(description="decoder blocks")
    num_heads: Count = Field(description="attention heads; divides hidden_size")
    filter_size: Count = Field(description="width of the feed-forward layer")
    position_embedding_type: Literal["learned"] = "learned"
    share_embedding_weights: bool = Field(True, description="tie token embedding and read-out")
    attention_type: Literal["scaled_dot_product"] = "scaled_dot_product"
    nonlinearity: Literal["gelu"] = "gelu"
    use_projection_bias_in_attention: bool = Field(True, description="bias of Q, K, V")
    use_ffn_bias_in_attention: bool = Field(True, description="bias of the attention output")
    use_ffn_bias: bool = Field(True, description="bias of the feed-forward layers")
    use_bias_in_output: bool = Field(False, description="bias of the read-out")
    dropout_rate: float = Field(
        0.0, ge=0, lt=1, description="dropout of embeddings, attention, residuals"
    )
    layer_norm_epsilon: float = Field(1e-5, gt=0, description="added to the variance")
    embedding_initializer: TruncatedNormal = TruncatedNormal()
    initializer: TruncatedNormal = TruncatedNormal()
    output_layer_initializer: TruncatedNormal | None = Field(
        None, description="last layer of each residual branch; default std 0.02 / sqrt(2 layers)"
    )
    loss_scaling: Literal["num_tokens", "batch_size"] = Field(
        "num_tokens", description="divide the gradient by counted tokens, or by batch_size / weight"
    )
    loss_weight: float = Field(1.0, gt=0, description="used by loss_scaling: batch_size")
    mixed_precision: bool = Field(
        False, description="compute in fp16_type; false: in fp32. Masters and sums are fp32 always"
    )
    fp16_type: Literal["bfloat16", "float16"] = Field(
        "float16", description="half precision of matrices and computing, with mixed_precision"
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            )
        return self

    @field_validator("fp16_type", mode="before")
    @classmethod
    def _public_format(cls, value: Any) -> Any:
        if value == "cbfloat16":
            raise ValueError(
                "cbfloat16 is not supported: its definition is not public, so it cannot be "
                "emulated; use bfloat16"
            )
        return value

    @property
    def precision(self) -> Precision:
        """What the wafers compute in."""
        return self.fp16_type if self.mixed_precision else "float32"


class Linear(FrozenModel):
    """Learning rate on a straight line over `total_iters` steps."""

    scheduler: Literal["Linear"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


class CosineDecay(FrozenModel):
    """Learning rate on half a cosine over `total_iters` steps."""

    scheduler: Literal["CosineDecay"]
    initial_learning_rate: Rate
    end_learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


class Constant(FrozenModel):
    """One learning rate for `total_iters` steps."""

    scheduler: Literal["Constant"]
    learning_rate: Rate
    total_iters: Count = Field(description="length in steps")


Scheduler = Annotated[Linear | CosineDecay | Constant, Field(discriminator="scheduler")]


class OptimizerConfig(FrozenModel):
    """Section `optimizer`: AdamW with decoupled decay (none on 1-D parameters)."""

    optimizer_type: Literal["AdamW"] = "AdamW"
    betas: tuple[float, float] = Field((0.9, 0.95), description="decay of the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the square root of the second moment")
    weight_decay: float = Field(0.1, ge=0, description="decoupled decay per unit of learning rate")
    max_gradient_norm: float | None = Field(
        1.0, gt=0, description="global 2-norm limit; null: none"
    )
    learning_rate: Rate | tuple[Scheduler, ...] = Field(
        description="a number, or schedulers that follow one another; the last value stays"
    )
    loss_scaling_factor: float | Literal["dynamic"] = Field(
        1.0,
        description="loss scale of float16, a power of two; dynamic: starts at 32768, halves on "
        "overflow (that step is skipped), doubles after 2000 finite steps",
    )

    @field_validator("loss_scaling_factor", mode="before")
    @classmethod
    def _power_of_two(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "dynamic" and not (number and value > 0 and math.frexp(value)[0] == 0.5):
            raise ValueError("expected dynamic, or a power of two, which divides out exactly")
        return value


class OpProfilerConfig(FrozenModel):
    """Section `runconfig.op_profiler_config`: a trace of each of these steps, a table of all."""

    start_step: Count = Field(description="first step that is profiled")
    end_step: Count = Field(description="last step that is profiled")


class Autorestart(FrozenModel):
    """Section `runconfig.autorestart`: what follows when a rank is lost (distributed only)."""

    max_num_restarts: int = Field(0, ge=0, description="restarts from the last checkpoint")
    min_num_csx: Count = Field(1, description="each restart takes a system less, down to this")


class RunConfig(FrozenModel):
    """Section `runconfig`: lengths in steps, and the emulated cluster."""

    max_steps: Count | None = Field(None, description="last step; `--num_steps` overrides")
    seed: int = Field(1, ge=0, description="of weights, dropout and order; `--seed` overrides")
    num_csx: Count = Field(
        1, description="emulated systems; `--num_csx` overrides; never changes bits"
    )
    checkpoint_steps: int = Field(
        0, ge=0, description="steps between checkpoints; 0: at the end only"
    )
    max_checkpoints: Count = Field(2, description="newest checkpoints kept")
    save_initial_checkpoint: bool = Field(False, description="checkpoint before step 1")
    eval_frequency: Count | None = Field(
        None, description="steps between evaluations; null: at the end"
    )
    eval_steps: Count | None = Field(
        None, description="batches of one evaluation; null: the whole set"
    )
    log_steps: Count = Field(1, description="steps between console lines; step 1 is shown too")
    op_profiler_config: OpProfilerConfig | None = Field(
        None, description="steps to profile, into MODEL_DIR/profile; null: none"
    )
    threads: Count = Field(
        1, description="CPU threads (ours); part of the run: bits hold for one count"
    )
    wafer_memory: Bytes = Field(40 * 10**9, description="memory of one emulated wafer (ours)")
    min_leaves: Count = Field(8, description="leaves that micro_batch_size: auto must leave (ours)")
    activations: ActivationRule = Field(
        "keep",
        description="where they wait for backward: on the wafer, on the activation worker (evict), "
        "or nowhere (recompute block by block); changes no bits, but what micro_batch_size: auto "
        "chooses (ours)",
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="what wafers of target CSX compute on (ours); part of the run"
    )
    max_wgt_servers: int = Field(
        0,
        ge=0,
        description="weight servers that whole weights are spread over; 0: one, or one for every "
        "rank; never changes bits",
    )
    transport: Literal["inline", "simulated", "distributed"] = Field(
        "inline",
        description="how the roles of the cluster talk (ours): by calls; over a simulated network; "
        "between processes of this machine or of torchrun; never changes bits",
    )
    processes: Count | None = Field(
        None,
        description="ranks that transport: distributed starts (ours); null: one for every core, "
        "and no more than num_csx",
    )
    liveness: float = Field(
        15.0, gt=0, description="silence after which a rank counts as dead (ours)"
    )
    autorestart: Autorestart = Autorestart()


class Params(FrozenModel):
    """A whole `params.yaml`."""

    train_input: TrainInput = Field(description="section with the training data")
    eval_input: EvalInput | None = Field(None, description="section with the validation data")
    model: ModelConfig = Field(description="section with the model's shape")
    optimizer: OptimizerConfig = Field(description="section with the optimizer")
    runconfig: RunConfig = RunConfig()


def load_params(path: Path) -> Params:
    """Read and check a `params.yaml`, or the shipped one of a bare name such as `tiny`.

    Relative directories are resolved against the file.

    Raises ConfigError with one line: FILE:LINE, dotted key, what was expected, a did-you-mean.
    """
    file = find_config("train", path)
    loaded = load(file)
    params = parse(Params, loaded)
    _check_loss_scale(params, loaded)
    base = file.resolve().parent
    changes = {
        name: section.model_copy(update={"data_dir": base / section.data_dir})
        for name in ("train_input", "eval_input")
        if (section := getattr(params, name)) is not None and section.data_dir is not None
    }
    return params.model_copy(update=changes)


def override(
    params: Params,
    *,
    seed: int | None = None,
    num_csx: int | None = None,
    num_steps: int | None = None,
    transport: str | None = None,
) -> Params:
    """Put command-line options over the file's values. Raises ConfigError naming the option."""
    given = {"seed": seed, "num_csx": num_csx, "max_steps": num_steps}
    options = {"seed": ("--seed", 0), "num_csx": ("--num_csx", 1), "max_steps": ("--num_steps", 1)}
    for key, (option, least) in options.items():
        value = given[key]
        if value is not None and value < least:
            raise ConfigError(f"{option} {value}: expected an integer of at least {least}")
    asked = {**given, "transport": transport}
    update = {key: value for key, value in asked.items() if value is not None}
    return params.model_copy(update={"runconfig": params.runconfig.model_copy(update=update)})


def _check_loss_scale(params: Params, loaded: Loaded) -> None:
    """Refuse a loss scale where gradients have the range of fp32 anyway."""
    factor, precision = params.optimizer.loss_scaling_factor, params.model.precision
    if factor != 1.0 and precision != "float16":
        key = "optimizer.loss_scaling_factor"
        raise ConfigError(
            f"{loaded.where(key)}: {key}: {factor} is for float16 only, and this model computes in "
            f"{precision}; leave it out, or set model.mixed_precision: true and model.fp16_type: "
            "float16"
        )
