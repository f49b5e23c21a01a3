"""Section `inference_input`: the prompts of `--mode infer`, and what ends their continuations.

Model Zoo has what ends them in section `model`; it is moved here, because a model does not depend
on it.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.core.config_model import FrozenModel
from trainer.config.draft import Draft
from trainer.config.fields import Count

OF_MODEL = ("start_token", "stop_sequences", "max_tokens")
"""Keys that Model Zoo has in section `model`."""

TokenId = Annotated[int, Field(ge=0)]
# A validator that ran before hands on tuples as lists and paths as text, so these are not strict.
StopSequence = Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1)]
Place = Annotated[Path, Field(strict=False)]


class InferenceInput(FrozenModel):
    """Section `inference_input`."""

    data_processor: Literal["GptHDF5MapDataProcessor", "GptHDF5DataProcessor"] = Field(
        "GptHDF5MapDataProcessor", description="either name reads the prompts in data_dir"
    )
    data_dir: Place | None = Field(
        None,
        description="prompts, relative to this file: a .jsonl file with a `prompt` per line, a "
        ".txt "
        "file with one prompt per line, or a directory of .h5 files; null: hdf5/validation of "
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
    """Move Model Zoo's keys of section `model` here. Raises ConfigError for one that stands in
    both sections."""
    model = draft.section("model")
    given = [key for key in OF_MODEL if key in model]
    if not given:
        return
    if draft.sections.get("inference_input") is None:
        draft.sections["inference_input"] = {}
    section = draft.section("inference_input")
    for key in given:
        if key in section:
            raise draft.error(
                f"model.{key}", f"the same setting as inference_input.{key}; give only one of them"
            )
        draft.spelled[f"inference_input.{key}"] = draft.written(f"model.{key}")
        section[key] = model.pop(key)
