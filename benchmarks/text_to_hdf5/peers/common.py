"""What the peers' scripts share: their options, and the summary they print."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path


def options_of(description: str | None, *flags: str) -> argparse.Namespace:
    """FILES..., `--out DIR` (which does not exist), `--vocabulary DIR` of the tokenizer, and flags
    that only one script has.

    The vocabulary is one tokenizer in two forms: `tokenizer.json`, and GPT-2's `encoder.json` and
    `vocab.bpe`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def print_summary(documents: int, tokens: int, *packages: str) -> None:
    """The last line of standard output: documents and tokens that came out (EOS included)."""
    versions = {name: version(name) for name in packages}
    print(json.dumps({"documents": documents, "tokens": tokens, "versions": versions}))
