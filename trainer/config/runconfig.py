"""Section `runconfig`: lengths in steps, and the emulated cluster."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.core.config_model import Bytes, FrozenModel, Share
from trainer.config.fields import Count
from wafer_backend.activations import ActivationRule


class OpProfilerConfig(FrozenModel):
    """Section `runconfig.op_profiler_config`: a trace of each of these steps, a table of all."""

    start_step: Count = Field(description="first step that is profiled")
    end_step: Count = Field(description="last step that is profiled")


class Autorestart(FrozenModel):
    """Section `runconfig.autorestart`: what follows when a rank is lost (distributed only)."""

    max_num_restarts: int = Field(0, ge=0, description="restarts from the last checkpoint")
    min_num_csx: Count = Field(1, description="each restart takes a system less, down to this")


class StabilityConfig(FrozenModel):
    """Section `runconfig.stability`: what is watched while training (ours; docs/stability.md)."""

    every: Count | None = Field(
        100, description="steps between measures of weights, gradients and AdamW's v; null: none"
    )
    growth_limit: float = Field(
        20.0, gt=1, description="growth of weights since the first measure that is warned of"
    )
    key_bias_limit: float = Field(
        3.0, gt=0, description="size of K biases in that of Q and V biases that is warned of"
    )
    underflow_limit: Share = Field(
        0.05, description="share of values lost in half precision that is warned of"
    )
    spike_window: int = Field(100, ge=2, description="losses before a step that it is held against")
    spike_sigma: float | None = Field(
        6.0, gt=0, description="distance of a loss above their mean that makes a spike; null: none"
    )
    on_spike: Literal["warn", "stop"] = Field(
        "warn", description="what follows; a loss that is not finite stops in any case"
    )


class RunConfig(FrozenModel):
    """Section `runconfig`: lengths in steps, and the emulated cluster."""

    max_steps: Count | None = Field(None, description="last step; `--num_steps` overrides")
    num_steps: Count | None = Field(
        None, description="steps from where the run starts; `--num_steps` overrides"
    )
    num_epochs: Count | None = Field(None, description="passes over the data from where it starts")
    max_epochs: Count | None = Field(None, description="last pass over the data")
    seed: int = Field(1, ge=0, description="of weights, dropout and order; `--seed` overrides")
    num_csx: Count = Field(
        1, description="emulated systems; `--num_csx` overrides; never changes bits"
    )
    checkpoint_steps: int = Field(
        0, ge=0, description="steps between checkpoints; 0: at the end only"
    )
    autoload_last_checkpoint: bool = Field(
        True, description="resume from the newest checkpoint of model_dir"
    )
    checkpoint_path: Annotated[Path, Field(strict=False)] | None = Field(
        None,
        description="checkpoint directory to start from, relative to this file; "
        "`--checkpoint_path` overrides",
    )
    load_checkpoint_states: str | None = Field(
        None, description="parts that are loaded, such as `model,optimizer`; null: all"
    )
    disable_strict_checkpoint_loading: bool = Field(
        False, description="let parameters be missing from the checkpoint, or in excess"
    )
    max_checkpoints: Count = Field(2, description="newest checkpoints kept")
    save_initial_checkpoint: bool = Field(False, description="checkpoint before step 1")
    eval_frequency: Count | None = Field(
        None, description="steps between evaluations; null: at the end"
    )
    eval_steps: Count | None = Field(
        None, description="batches of one evaluation; null: the whole set"
    )
    export: Literal["hf"] | None = Field(
        None,
        description="write the last checkpoint for Hugging Face when the run is over (ours)",
    )
    log_steps: Count = Field(
        1,
        description="steps between console lines; step 1, and a line every ten seconds, too",
    )
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
    stability: StabilityConfig = StabilityConfig()

    def beside(self, base: Path) -> "RunConfig":
        """With a `checkpoint_path` that is relative to the directory `base`."""
        path = self.checkpoint_path
        return self if path is None else self.model_copy(update={"checkpoint_path": base / path})
