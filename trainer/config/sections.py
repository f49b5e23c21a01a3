"""Sections `train_input`, `eval_input` and `inference_input`: where samples and prompts come from,
and how many make a batch; and `runconfig`: lengths in steps, and the emulated cluster.

What ends a continuation is in section `model` of Model Zoo; it is moved here, because a model does
not depend on it.
"""

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.model import Bytes, FrozenModel, Share
from pipeline.core.order import Schedule
from trainer.config.model import Count
from trainer.config.params_file import Draft
from wafer_backend.streaming.activations import ActivationRule

# What a validator has handled before is Python data, with paths as text and tuples as lists; so
# these two are not strict. Nothing else is taken for them.
Directory = Annotated[Path, Field(strict=False)]
Directories = Annotated[tuple[Directory, ...], Field(strict=False)]


class MixturePart(FrozenModel):
    """One data set of a mixture."""

    data_dir: Directory = Field(description="directory of .h5 shards with data_params.json")
    weight: float = Field(
        gt=0, description="how many times each pass over the mixture reads its rows"
    )


class SinkTokens(FrozenModel):
    """An entry of `data_transforms`: the same tokens before every row, as attention sinks
    (StreamingLLM, arXiv 2309.17453). They do not count in the loss."""

    name: Literal["add_sink_tokens"]
    sink_token_id: int = Field(0, ge=0, description="the token")
    num_sink_tokens: Count = Field(1, description="how many of it")
    sink_token_start_pos: Literal[0] = Field(0, description="where they are put")
    truncate_to_original_length: Literal[False] = Field(
        False, description="rows become longer by them"
    )


class MaskTokens(FrozenModel):
    """An entry of `data_transforms`: masked language modelling (BERT, arXiv 1810.04805). Chosen
    tokens, which alone count in the loss, are hidden: four fifths become the mask token, a tenth
    any token, a tenth stay. Other tokens are chosen each time that a row is read."""

    name: Literal["mask_tokens"]
    mask_token: str = Field(
        "[MASK]", description="the token that hides others, by its string in the run's tokenizer"
    )
    mask_token_id: int | None = Field(
        None,
        ge=0,
        description="by its id instead; a token that no text has. Of GPT-2: 187, the byte 0xff",
    )
    masked_lm_prob: float = Field(
        0.15, gt=0, lt=1, description="share of the tokens of a row, special ones apart"
    )


class CorruptSpans(FrozenModel):
    """An entry of `data_transforms`: span corruption (T5, arXiv 1910.10683). Spans of a row are cut
    out, each for a sentinel, and told by the decoder behind the same sentinels. Other spans are cut
    each time that a row is read; all rows give as many tokens."""

    name: Literal["corrupt_spans"]
    noise_density: float = Field(0.15, gt=0, lt=1, description="share of a row that is cut out")
    mean_noise_span_length: float = Field(3.0, ge=1, description="tokens of a span, on average")
    extra_ids: Count | None = Field(
        None,
        description="sentinels behind the vocabulary of the data set, which model.vocab_size "
        "includes; null: `<extra_id_0>`, `<extra_id_1>`, ... of the run's tokenizer",
    )

    def count_spans(self, tokens: int) -> tuple[int, int]:
        """(tokens that are cut out, in how many spans) of a row of at least 2 tokens; both at least
        1, and a token stays before every span."""
        noise = min(max(round(tokens * self.noise_density), 1), tokens - 1)
        spans = max(round(noise / self.mean_noise_span_length), 1)
        return noise, min(spans, tokens - noise)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """(tokens of the encoder, of the decoder) for a row of so many, an EOS behind each.

        >>> CorruptSpans(name="corrupt_spans").lengths(568)
        (512, 114)
        """
        noise, spans = self.count_spans(tokens)
        return tokens - noise + spans + 1, noise + spans + 1

    def row_length(self, inputs: int, told: int | None = None) -> int:
        """The longest rows that give the encoder and the decoder at most so many tokens, as T5's
        compute_input_and_target_lengths; `told`: None for any number. At least 2.

        >>> rule = CorruptSpans(name="corrupt_spans")
        >>> rule.row_length(512), rule.row_length(512, 114), rule.row_length(512, 20)
        (568, 568, 96)
        """
        tokens = 2
        while True:
            longer = self.lengths(tokens + 1)
            if longer[0] > inputs or (told is not None and longer[1] > told):
                return tokens
            tokens += 1


DataTransform = Annotated[SinkTokens | MaskTokens | CorruptSpans, Field(discriminator="name")]


class BatchSizeStep(FrozenModel):
    """One batch size of a schedule."""

    from_step: Count = Field(description="first step with this batch size, counted from 1")
    batch_size: Count = Field(description="global batch in sequences")


class SampleInputConfig(FrozenModel):
    """What `train_input` and `eval_input` share: where samples come from."""

    data_processor: Literal["GptHDF5DataProcessor", "GptHDF5MapDataProcessor"] = Field(
        "GptHDF5DataProcessor", description="either name reads .h5 shards row by row"
    )
    data_dir: Directory | Directories | None = Field(
        None,
        description="directory of .h5 shards with data_params.json, relative to this file, or a "
        "list of them",
    )
    mixture: tuple[MixturePart, ...] = Field(
        (), strict=False, description="weighted data sets, instead of data_dir"
    )
    use_vsl: bool = Field(
        False, description="documents packed into one row do not attend to each other (VSL)"
    )
    data_transforms: tuple[DataTransform, ...] = Field(
        (),
        strict=False,
        max_length=1,
        description="a change of rows as they are read: sink tokens before them, which "
        "max_position_embeddings includes; hidden tokens, which an encoder guesses; or spans cut "
        "out, which a decoder behind an encoder tells",
    )
    batch_size: Count = Field(description="global batch in sequences, over all CS-2 systems")
    micro_batch_size: Count | Literal["auto"] = Field(
        "auto",
        description="sequences per leaf; auto: the largest number that fits runconfig.wafer_memory "
        "and gives at least runconfig.min_leaves leaves; never depends on num_csx",
    )

    @model_validator(mode="after")
    def _one_source(self) -> "SampleInputConfig":
        if self.mixture and self.data_dir is not None:
            raise ValueError("give data_dir or mixture, not both")
        if self.sinks and self.use_vsl:
            raise ValueError("add_sink_tokens needs use_vsl: false")
        if isinstance(self.masking, CorruptSpans) and self.use_vsl:
            raise ValueError("corrupt_spans needs use_vsl: false")
        return self

    @property
    def sinks(self) -> SinkTokens | None:
        """The tokens that are put before every row."""
        return next((one for one in self.data_transforms if isinstance(one, SinkTokens)), None)

    @property
    def masking(self) -> MaskTokens | CorruptSpans | None:
        """How tokens to guess are chosen."""
        kinds = MaskTokens | CorruptSpans
        return next((one for one in self.data_transforms if isinstance(one, kinds)), None)


class TrainInput(SampleInputConfig):
    """Section `train_input`. Rows are read in the keyed order of `pipeline.core.order`."""

    batch_size_schedule: tuple[BatchSizeStep, ...] = Field(
        (),
        strict=False,
        description="batch sizes by first step, ascending from 1, instead of batch_size (ours)",
    )
    shuffle: Literal[True] = Field(True, description="rows are always shuffled")
    shuffle_seed: int | None = Field(
        None, ge=0, description="seed of the order; default runconfig.seed"
    )
    order: Literal["keyed", "modelzoo"] = Field(
        "keyed", description="keyed: O(1) memory; modelzoo: torch.randperm of every epoch (ours)"
    )

    @model_validator(mode="before")
    @classmethod
    def _first_batch_size(cls, value: Any) -> Any:
        """Put the first size of the schedule into `batch_size`, when that is not given."""
        if not isinstance(value, dict) or value.get("batch_size") is not None:
            return value
        entries = value.get("batch_size_schedule")
        first = entries[0] if isinstance(entries, list | tuple) and entries else None
        size = first.get("batch_size") if isinstance(first, dict) else None
        return value if size is None else {**value, "batch_size": size}

    @model_validator(mode="after")
    def _ascending(self) -> "TrainInput":
        steps = [entry.from_step for entry in self.batch_size_schedule]
        if not steps:
            return self
        if steps[0] != 1 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise ValueError(
                f"batch_size_schedule: from_step must start at 1 and ascend, not {steps}"
            )
        if self.batch_size != self.batch_size_schedule[0].batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not the first of batch_size_schedule; give only "
                "one of them"
            )
        return self

    @property
    def schedule(self) -> Schedule:
        """((from_step, batch_size), ...), from_step 1-based."""
        if not self.batch_size_schedule:
            return ((1, self.batch_size),)
        return tuple((entry.from_step, entry.batch_size) for entry in self.batch_size_schedule)


class EvalInput(SampleInputConfig):
    """Section `eval_input`. Rows are read once, in file order; the last batch may be short."""

    shuffle: Literal[False] = Field(False, description="evaluation reads rows in file order")


OF_MODEL = ("start_token", "stop_sequences", "max_tokens")
"""Keys that Model Zoo has in section `model`."""

TokenId = Annotated[int, Field(ge=0)]
StopSequence = Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1)]


class InferenceInput(FrozenModel):
    """Section `inference_input`."""

    data_processor: Literal["GptHDF5MapDataProcessor", "GptHDF5DataProcessor"] = Field(
        "GptHDF5MapDataProcessor", description="either name reads the prompts in data_dir"
    )
    data_dir: Directory | None = Field(
        None,
        description="prompts, relative to this file: a .jsonl file with a `prompt` per line, a "
        ".txt file with one prompt per line, or a directory of .h5 files; null: hdf5/validation of "
        "--data",
    )
    batch_size: Count = Field(8, description="prompts that are continued together")
    start_token: TokenId | None = Field(
        None,
        description="token id that follows the prompt in rows of .h5 files without "
        "data_params.json",
    )
    stop_sequences: tuple[StopSequence, ...] = Field(
        (),
        strict=False,
        description="lists of token ids; each list ends a continuation, as EOS does",
    )
    max_tokens: Count | None = Field(None, description="longest continuation; null: up to the MSL")

    def beside(self, base: Path) -> "InferenceInput":
        """With a `data_dir` that is relative to the directory `base`."""
        place = self.data_dir
        return self if place is None else self.model_copy(update={"data_dir": base / place})


def move_from_model(draft: Draft) -> None:
    """Move Model Zoo's keys of section `model` here. Raises ConfigError for one that is in both."""
    model = draft.section("model")
    for key in OF_MODEL:
        if key not in model:
            continue
        if draft.sections.get("inference_input") is None:
            draft.sections["inference_input"] = {}
        section = draft.section("inference_input")
        if key in section:
            raise draft.error(
                f"model.{key}", f"the same setting as inference_input.{key}; give only one of them"
            )
        draft.spelled[f"inference_input.{key}"] = draft.written(f"model.{key}")
        section[key] = model.pop(key)


class OpProfilerConfig(FrozenModel):
    """Section `runconfig.op_profiler_config`: a trace of each of these steps, a table of all."""

    start_step: Count = Field(description="first step to profile")
    end_step: Count = Field(description="last step to profile")

    @model_validator(mode="after")
    def _in_order(self) -> "OpProfilerConfig":
        if self.end_step < self.start_step:
            raise ValueError("expected an end_step that is not before start_step")
        return self


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
    threads: Annotated[Count, Field(le=1024)] = Field(
        1,
        description="CPU threads (ours); part of the run: another number gives other bits. Several "
        "spin while they wait for each other: keep 1 where other work shares the cores",
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
        "most num_csx",
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
