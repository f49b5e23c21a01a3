"""Text to tokens by `datasets`: load_dataset, then map with `tokenizers`, in batches.

    PYTHON peers/datasets_map.py --out DIR --vocabulary DIR FILES...

As the Hugging Face course and run_clm.py do it before they group texts: the result is an Arrow
file with `input_ids` (int32) of every document, an EOS behind each. Batches of 1,000 documents (the
default), one process. The tokens come from `encode_batch_fast`, which makes no offsets.
"""

from typing import Any

from common import options_of, print_summary
from datasets import load_dataset
from tokenizers import Tokenizer


def main() -> None:
    options = options_of(__doc__)
    tokenizer = Tokenizer.from_file(str(options.vocabulary / "tokenizer.json"))
    eos = tokenizer.token_to_id("<|endoftext|>")

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        found = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"input_ids": [[*one.ids, eos] for one in found]}

    files = [str(file) for file in options.files]
    data = load_dataset("json", data_files=files, split="train", cache_dir=str(options.out))
    mapped = data.map(encode, batched=True, remove_columns=data.column_names)
    ids = mapped.data.column("input_ids")
    tokens = sum(len(chunk.flatten()) for chunk in ids.chunks)
    print_summary(len(mapped), tokens, "datasets", "tokenizers", "pyarrow")


if __name__ == "__main__":
    main()
