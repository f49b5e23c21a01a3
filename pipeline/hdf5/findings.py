"""What can be wrong with a directory of HDF5 files, and why it matters."""

from dataclasses import dataclass

WHY = {
    "unreadable": "a loader stops at this file, or reads wrong tokens from it",
    "refused": "it reaches outside the file or needs code from elsewhere, so it is not read",
    "limits": "the file makes its reader crash or use up its limits: treat it as hostile",
    "no_files": "there is nothing to train on; loaders do not look into subdirectories",
    "params": "loaders read the names of the features from data_params.json; people read the rest",
    "differs": "loaders read all files of a directory as one array and stop at a file that differs",
    "layout": "Model Zoo reads int32 (N, 3, MSL), int32 (N, 5, MSL) or an unsigned 1-D corpus",
    "count": "Model Zoo's iterable loader reads the number of rows from this attribute",
    "ids": "an embedding has no row for such an id: training crashes or reads unrelated memory",
    "mask_values": "the mask multiplies the loss: only 0 and 1 make sense",
    "mask_holes": "padding belongs at the end; such a mask is only right for prompts with answers",
    "mask_empty": "the row takes up training time and teaches nothing",
    "labels": "the model is trained to predict something other than the next token",
    "segments": "attention then crosses documents, or positions are wrong",
    "no_eos": "documents run into each other and the model never learns to stop",
    "eos_overwrites": "tokens were replaced by EOS at the end of rows and documents run into each "
    "other (Model Zoo 2.4 and later without split_text_to_tokenize)",
    "windows": "the token between two rows is never a label: windows step MSL + 1 instead of MSL "
    "(Model Zoo 2.4 and later)",
    "copied": "the model memorises its rows; a file was copied or written twice: delete one",
    "repeated": "some text occurs twice, as licences often do; `prep dedup` finds such documents",
    "lineage": "the record of which document a token came from does not fit the tokens",
    "lost": "tokens of documents are missing or occur twice",
}
"""Code of a finding -> why it matters."""


@dataclass(frozen=True)
class FileFinding:
    """One thing that is wrong with a file, or with the directory (`file` is empty).

    `row` is the first row concerned, `count` how many rows are (0 where rows are not the matter).
    """

    file: str
    code: str
    what: str
    row: int | None = None
    count: int = 0

    @property
    def why(self) -> str:
        """Why it matters, in one sentence."""
        return WHY[self.code]
