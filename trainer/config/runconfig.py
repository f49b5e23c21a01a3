"""Section `runconfig`: lengths in steps, and the emulated cluster."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.model import Bytes, FrozenModel, Share
from trainer.config.fields import Count
from wafer_backend.streaming.activations import ActivationRule


class OpProfilerConfig(FrozenModel):
    """Section `runconfig.op_profiler_config`: a trace of each of these steps, a table of all."""

    start_step: Count = Field(description="first step to profile")
    end_step: Count = Field(description="last step to profile")


class Autorestart(FrozenModel):
    """Section `runconfig.autorestart`: what follows when a rank is lost (distributed only)."""

    max_num_restarts: int = Field(0, ge=0, description="most restarts from the last checkpoint")
    min_num_csx: Count = Field(
        1, description="each restart uses one system less, but at least this many"
    )


class StabilityConfig(FrozenModel):
    """Section `runconfig.stability`: what is watched while training (ours; docs/stability.md)."""

    every: Count | None = Field(
        100,
        description="steps between measurements of weights, gradients and AdamW's v; null: none",
    )
    growth_limit: float = Field(
        20.0,
        gt=1,
        description="warn when weights have grown this many times since the first measurement",
    )
    key_bias_limit: float = Field(
        3.0, gt=0, description="warn when K biases are this many times as large as Q and V biases"
    )
    underflow_limit: Share = Field(
        0.05, description="warn when this share of values is lost in half precision"
    )
    spike_window: int = Field(
        100, ge=2, description="number of losses before a step that its loss is compared with"
    )
    spike_sigma: float | None = Field(
        6.0, gt=0, description="a loss this far above their mean is a spike; null: no check"
    )
    on_spike: Literal["warn", "stop"] = Field(
        "warn", description="what a spike does; a loss that is not finite always stops the run"
    )


class RunConfig(FrozenModel):
    """Section `runconfig`: lengths in steps, and the emulated cluster."""

    max_steps: Count | None = Field(None, description="last step; `--num_steps` overrides")
    num_steps: Count | None = Field(
        None, description="steps, counted from where the run starts; `--num_steps` overrides"
    )
    num_epochs: Count | None = Field(
        None, description="passes over the data, counted from where the run starts"
    )
    max_epochs: Count | None = Field(None, description="last pass over the data")
    seed: int = Field(
        1, ge=0, description="seed of weights, dropout and data order; `--seed` overrides"
    )
    num_csx: Count = Field(
        1, description="emulated systems; never changes results; `--num_csx` overrides"
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
        None, description="parts to load, such as `model,optimizer`; null: all"
    )
    disable_strict_checkpoint_loading: bool = Field(
        False, description="the checkpoint may lack parameters or have extra ones"
    )
    max_checkpoints: Count = Field(2, description="number of newest checkpoints to keep")
    save_initial_checkpoint: bool = Field(False, description="write a checkpoint before step 1")
    eval_frequency: Count | None = Field(
        None, description="steps between evaluations; null: at the end"
    )
    eval_steps: Count | None = Field(
        None, description="batches per evaluation; null: the whole data set"
    )
    export: Literal["hf"] | None = Field(
        None,
        description="write the last checkpoint for Hugging Face at the end of the run (ours)",
    )
    log_steps: Count = Field(
        1,
        description="steps between console lines; step 1 always has one, and so has every ten "
        "seconds",
    )
    op_profiler_config: OpProfilerConfig | None = Field(
        None, description="steps to profile; results are written to MODEL_DIR/profile; null: none"
    )
    threads: Count = Field(
        1, description="CPU threads (ours); part of the run: another number gives other bits"
    )
    wafer_memory: Bytes = Field(40 * 10**9, description="memory of one emulated wafer (ours)")
    min_leaves: Count = Field(
        8, description="fewest leaves that micro_batch_size: auto may choose (ours)"
    )
    activations: ActivationRule = Field(
        "keep",
        description="keep: activations stay on the wafer until backward; evict: they are moved to "
        "the "
        "activation worker; recompute: they are computed again, block by block; results are equal, "
        "but micro_batch_size: auto may choose another size (ours)",
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="device on which wafers of target CSX compute (ours); part of the run"
    )
    max_wgt_servers: int = Field(
        0,
        ge=0,
        description="number of weight servers to spread the weights over; 0: one, or one for every "
        "rank; never changes results",
    )
    transport: Literal["inline", "simulated", "distributed"] = Field(
        "inline",
        description="how the roles of the cluster communicate (ours): inline: by calls; simulated: "
        "over a simulated network; distributed: between processes of this machine or of torchrun; "
        "never changes results",
    )
    processes: Count | None = Field(
        None,
        description="ranks that transport: distributed starts (ours); null: one per core, but at "
        "most "
        "num_csx",
    )
    liveness: float = Field(
        15.0, gt=0, description="a rank that is silent for this long counts as lost (ours)"
    )
    autorestart: Autorestart = Autorestart()
    stability: StabilityConfig = StabilityConfig()

    def beside(self, base: Path) -> "RunConfig":
        """With a `checkpoint_path` that is relative to the directory `base`."""
        path = self.checkpoint_path
        return self if path is None else self.model_copy(update={"checkpoint_path": base / path})
