"""Train a model of transformers on the rows of a prep run.

python examples/train_with_transformers.py RUN [STEPS]      (needs transformers and accelerate)
"""

import json
import sys
import tempfile
from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from pipeline.hdf5 import HDF5Dataset


def main(run: Path, steps: int) -> dict[str, float]:
    """Train a small GPT-2 and return its loss on the validation rows."""
    rows = HDF5Dataset(run / "hdf5" / "train", labels="hf")
    params = json.loads((run / "hdf5" / "train" / "data_params.json").read_bytes())
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": rows.max_sequence_length}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=params["vocab_size"], **shape))
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out,
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            remove_unused_columns=False,  # or Trainer drops shift_labels, and with them labels
            prediction_loss_only=True,
            save_strategy="no",
            report_to="none",
        )
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        found = trainer.evaluate(HDF5Dataset(run / "hdf5" / "validation", labels="hf"))
    print(f"{steps} steps on {len(rows):,} rows; validation loss {found['eval_loss']:.3f}")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100)
