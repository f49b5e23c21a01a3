"""`train data_preprocess run`, as Model Zoo's `cszoo` has it: parse, call, print; no logic."""

from pathlib import Path

import typer

from trainer.commands.options import describe_command, make_registration, one_line_errors

app = typer.Typer(rich_markup_mode=None, help="Prepare data by a preprocessing file of Model Zoo.")


def run(config: Path, output_dir: Path | None = None) -> None:
    """Tokenize and pack texts as a preprocessing file of Model Zoo says, in its mode `pretraining`.

    --config: The file. Its other modes, and keys that `prep` does not have, are refused by name.
    --output_dir: Directory to write, instead of setup.output_dir of the file.

    Examples:
      train data_preprocess run --config autoregressive_lm_preprocessing.yaml
      train --data OUTPUT_DIR

    What is written is the directory of a `prep run`, with the rows in hdf5/, so that `prep trace`
    and `prep explain` answer for it. Documents are always shuffled.
    """
    import pipeline
    from trainer.data.preprocessing import IDLE, read_preprocessing, to_prep

    with one_line_errors():
        asked = read_preprocessing(config)
        idle = [f"processing.{key}" for key in IDLE if getattr(asked.processing, key) is not None]
        if idle:
            print(f"Without effect here: {', '.join(idle)}")
        out = output_dir or asked.setup.output_dir
        pipeline.run(to_prep(asked), out, asked.setup.processes, progress=True)
        print(f"rows: {out / 'hdf5' / 'train'}")


describe_command(app, run)
register = make_registration(data_preprocess=app)
