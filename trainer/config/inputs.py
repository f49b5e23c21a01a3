"""Sections `train_input`, `eval_input` and `inference_input`: where samples and prompts come from,
and how many make a batch.

What ends a continuation is in section `model` of Model Zoo; it is moved here, because a model does
not depend on it.
"""

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.model import FrozenModel
from pipeline.core.order import Schedule
from trainer.config.model import Count
from trainer.config.params_file import Draft

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
        return self


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
