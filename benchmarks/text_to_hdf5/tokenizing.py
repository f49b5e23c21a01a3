"""How fast one core turns text into token ids: ours against `tokenizers` and tiktoken.

    python -m benchmarks.text_to_hdf5.tokenizing FILES... --peer-python PYTHON [--megabytes 130]
        [--tokenizer gpt2] [--cpu 0] [--repeats 3] [--json FILE]

Every contestant runs in processes of its own, pinned to one CPU and held to one thread, over the
same documents. The *cold* pass is the first over the text, right after loading: caches of words
start empty, as in a worker. The rate is MB (10^6 bytes of UTF-8) per CPU second, the median of the
rounds, because a busy neighbour slows the clock on the wall; that rate is printed too. A round runs
all contestants one after another, and the ratio is the median of the rounds' ratios. RSS is
the growth of the peak during the cold pass. *Ours* starts from an Arrow array of strings and ends
with an Arrow array of lists, an EOS after every document; the others start from Python strings that
were made before the clock started, and end with what their fastest interface gives. The ids of all
must be equal, or the script fails. tiktoken takes part with GPT-2 only. A peer that the interpreter
given lacks is named and left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.measuring import find_peers, machine, one_thread
from benchmarks.text_to_hdf5.contenders import make_vocabulary

SCRIPT = Path(__file__).resolve().parent / "peers" / "encoding.py"
TARGETS = {"tokenizers": 40.0, "tiktoken": 6.0}

Rounds = list[dict[str, dict[str, Any]]]


def main() -> int:
    options = _options()
    found, missing = find_peers([options.peer_python], list(TARGETS))
    names = ["ours", *(peer.package for peer in found)]
    if options.tokenizer != "gpt2":
        names = [name for name in names if name != "tiktoken"]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary"
        make_vocabulary(options.ours_python, vocabulary, options.tokenizer)
        rounds = [
            {name: encode(name, vocabulary, options) for name in names}
            for _ in range(options.repeats)
        ]
    _print(rounds, names)
    for name in missing:
        print(f"{name}: not installed in {options.peer_python}")
    if options.json:
        told = {"machine": machine(), "tokenizer": options.tokenizer, "rounds": rounds}
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if len({run["ids"] for one in rounds for run in one.values()}) > 1:
        print("the ids differ")
        return 1
    print(f"ids of all equal: {rounds[0]['ours']['tokens']:,} tokens")
    return 0


def encode(name: str, vocabulary: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What one process measured."""
    python = options.ours_python if name == "ours" else options.peer_python
    sizes = ("--megabytes", str(options.megabytes), "--tokenizer", options.tokenizer)
    files = [str(file) for file in options.files]
    done = subprocess.run(
        [python, str(SCRIPT), name, *sizes, "--vocabulary", str(vocabulary), *files],
        env={**one_thread(), "FASTOKENS_BPE_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {options.cpu}),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _print(rounds: Rounds, names: list[str]) -> None:
    print(f"{rounds[0]['ours']['megabytes']:.1f} MB, {len(rounds)} rounds, one core")
    heading = ("", "cold MB/CPU s", "cold MB/s", "RSS MiB", "ours / it", "goal")
    print("{:30}{:>15}{:>11}{:>9}{:>11}{:>6}".format(*heading))
    for name in names:
        cold, wall, rss = (
            median(one[name][key] for one in rounds) for key in ("cold", "cold_wall", "rss_mib")
        )
        ratio = median(one["ours"]["cold"] / one[name]["cold"] for one in rounds)
        goal = f"{TARGETS[name]:g}" if name in TARGETS else ""
        label = rounds[0][name]["label"]
        print(f"{label:30}{cold:15.1f}{wall:11.1f}{rss:9.0f}{ratio:11.1f}{goal:>6}")
    print(f"ours, warm: {median(one['ours']['warm'] for one in rounds):.1f} MB/CPU s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ours-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--megabytes", type=float, default=1e9, help="text to take; default: all")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2 or a tokenizer.json")
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
