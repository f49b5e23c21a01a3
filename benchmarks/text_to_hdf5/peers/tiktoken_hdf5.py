"""Text to HDF5 by a short script around tiktoken: as `tiktoken_npy.py`, then rows to train on.

    PYTHON peers/tiktoken_hdf5.py --out DIR --vocabulary DIR FILES...

The layout is that of Model Zoo's scripts, with h5py's own gzip as they have it: one dataset `data`
a file, int32 [rows, 3, 2048] of ids, ones and the ids after them, a chunk a row, one row after the
other through all documents. What is left at the end of a file begins the next one.
"""

from pathlib import Path

import h5py
import numpy as np
from common import options_of, print_summary
from tiktoken_npy import EOS, gpt2, texts

LENGTH = 2048


def main() -> None:
    options = options_of(__doc__)
    options.out.mkdir(parents=True)
    encoding = gpt2(options.vocabulary)
    documents = tokens = 0
    left = np.empty(0, np.int32)
    for file in options.files:
        parts = [left]
        for text in texts(file):
            parts += [encoding.encode_to_numpy(text, disallowed_special=()), [EOS]]
            documents += 1
        ids = np.concatenate(parts, dtype=np.int32, casting="unsafe")
        rows = (len(ids) - 1) // LENGTH
        write(options.out / f"{file.name}.h5", ids, rows)
        left = ids[rows * LENGTH :]
        tokens += rows * LENGTH
    print_summary(documents, tokens, "tiktoken", "orjson", "zstandard", "h5py")


def write(path: Path, ids: np.ndarray, rows: int) -> None:
    """The first rows of these ids; each label is the id after its own."""
    shape = (rows, LENGTH)
    inputs = ids[: rows * LENGTH].reshape(shape)
    labels = ids[1 : rows * LENGTH + 1].reshape(shape)
    data = np.stack([inputs, np.ones(shape, np.int32), labels], axis=1)
    with h5py.File(path, "w") as file:
        file.attrs["n_examples"] = rows
        file.create_dataset("data", data=data, chunks=(1, 3, LENGTH), compression="gzip")


if __name__ == "__main__":
    main()
