"""How many of Model Zoo's decoder params files `train` takes, shrunken: parses, plans, trains.

    python -m benchmarks.trainer.released_params CHECKOUT [--releases Release_1.8.0 ...]

CHECKOUT is a git clone of Model Zoo, bare or not; files are read from its tags, and nothing is
checked out. A params file of a decoder is a YAML file in the `configs` of one of FAMILIES (those
for TensorFlow, for images and for pairs of answers are none).

A file parses when `load_params` takes it as it stands. It plans when `train --validate_only` builds
that model on the meta device, with WAFER_MEMORY: many need more than the 40 GB of a wafer here. It
trains when three steps of a shrunken copy end with a finite loss. The copy has a few layers, heads
of 8 units, 64 token ids and 32 positions; windows, ranges of positions and widths of muP shrink
with them, and all other keys stay.
"""

import argparse
import contextlib
import copy
import io
import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core import storage
from pipeline.core.errors import PrepError
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import shard_image
from trainer import train
from trainer.config import load_params, params_file
from trainer.loop.options import TrainOptions
from trainer.plan.run import validate_only

RELEASES = ("Release_1.8.0", "Release_2.0.2", "Release_2.2.1", "Release_2.4.0", "Release_2.10.0")
FAMILIES = (
    "bloom", "btlm", "falcon", "gemma2", "gpt2", "gpt3", "gptj", "jais", "llama", "mistral",
    "mixtral", "mpt", "santacoder", "starcoder",
)  # fmt: skip
_PATH = re.compile(rf"(?:pytorch|models/nlp)/({'|'.join(FAMILIES)})/(?:.*/)?configs/.*\.yaml")

WAFER_MEMORY = 10**15
"""Bytes, more than any file needs."""

MSL, VOCABULARY, LAYERS, HEAD, EXPERTS, BATCH, STEPS = 32, 64, 2, 8, 4, 4, 3
SINKS = 2


@dataclass(frozen=True)
class Outcome:
    """What became of a file: `reached` is none, parses, plans or trains; `reason` why no more."""

    release: str
    family: str
    path: str
    reached: str
    reason: str = ""


def list_files(checkout: Path, release: str) -> Iterator[tuple[str, str]]:
    """(family, path) of every params file of a decoder."""
    for path in _git(checkout, "ls-tree", "-r", "--name-only", release).splitlines():
        if match := _PATH.search(path):
            yield match[1], path


def try_file(release: str, family: str, path: str, text: str, data: Path) -> Outcome:
    """How far the file gets; one that fails in another way than by a PrepError raises."""
    reached = "none"
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "params.yaml"
        file.write_text(text)
        try:
            params = load_params(file)
            reached = "parses"
            run = params.runconfig.model_copy(update={"wafer_memory": WAFER_MEMORY})
            request = TrainOptions(
                target="CSX", params=params.model_copy(update={"runconfig": run}),
                model_dir=Path(scratch), num_csx=1, max_steps=STEPS,
            )  # fmt: skip
            validate_only(request, lambda line: None)
            reached = "plans"
            _train(shrink(params_file.load_params_yaml(file).value, data), Path(scratch) / "run")
            reached = "trains"
        except PrepError as error:
            reason = str(error).split("\n")[0].replace(f"{file}:", "line ")
            return Outcome(release, family, path, reached, reason)
    return Outcome(release, family, path, reached)


def _train(params: dict[str, Any], model_dir: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        done = train(params=params, model_dir=model_dir, max_steps=STEPS, mode="train")
    if done.loss is None or not math.isfinite(done.loss):
        raise PrepError(f"the loss of step {done.last_step} is {done.loss}")


def shrink(given: dict[str, Any], data: Path) -> dict[str, Any]:
    """A params file of either form with a small model and the data set `data`."""
    params = copy.deepcopy(given)
    if "trainer" in params:
        init = params["trainer"]["init"]
        model, loader = init["model"], params["trainer"]["fit"]["train_dataloader"]
        for part in ("checkpoint", "loop"):
            init[part] = {}
        init["backend"] = {"backend_type": "CSX"}
        init["callbacks"] = []  # they name a checkpoint that is not here, and sizes of leaves
        params["trainer"] = {"init": init, "fit": {"train_dataloader": loader}}
    else:
        model, loader = params["model"], params["train_input"]
        params = {k: v for k, v in params.items() if k in ("model", "optimizer", "sparsity")}
        params |= {"train_input": loader, "runconfig": {}}
    _shrink_model(model)
    for key in ("max_sequence_length", "vocab_size", "mixture"):
        loader.pop(key, None)
    loader |= {"data_dir": str(data), "batch_size": BATCH, "micro_batch_size": 2}
    for change in loader.get("data_transforms") or ():
        change |= {"sink_token_id": VOCABULARY - 1, "num_sink_tokens": SINKS}
        model |= {"attention_sink_tokens": SINKS, "max_position_embeddings": MSL + SINKS}
    return params


def _shrink_model(model: dict[str, Any]) -> None:
    heads, width = model["num_heads"], model["hidden_size"]
    groups = (model.get("extra_attention_params") or {}).get("num_kv_groups", 1)
    small_groups = 1 if groups == 1 else 2
    small_heads = 4 if heads % 2 == 0 else 3
    small, length = small_heads * HEAD, model["max_position_embeddings"]
    if model.get("attention_module") == "multiquery_attention" and groups != 1:
        model["extra_attention_params"] = {"num_kv_groups": small_groups}
    if rotary := model.get("rotary_dim"):
        model["rotary_dim"] = max(2, 2 * (rotary * HEAD * heads // width // 2))
    if inner := model.get("attention_inner_dim"):
        model["attention_inner_dim"] = small * 2 if inner > width else small
    for key in ("mup_base_hidden_size", "mup_base_filter_size"):
        if model.get(key):
            model[key] = small // 2
    for key in ("attention_sliding_window_length", "attention_sink_tokens", "attention_chunk_size"):
        if model.get(key):
            model[key] = max(2, model[key] * MSL // length)
    extra = model.get("pos_scaling_extra_args") or {}
    if "original_max_position_embeddings" in extra:
        extra["original_max_position_embeddings"] = MSL // 2
    if moe := model.get("moe"):
        moe["num_experts"] = min(moe["num_experts"], EXPERTS)
    model |= {
        "hidden_size": small, "num_heads": small_heads, "num_hidden_layers": LAYERS,
        "filter_size": 2 * small, "vocab_size": VOCABULARY, "max_position_embeddings": MSL,
    }  # fmt: skip


def write_data(directory: Path, *, packed: bool) -> Path:
    """A data set of random rows, of whole documents or of two documents each (VSL)."""
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (16, MSL + 1))
    features = [ids[:, :-1], np.ones((16, MSL), np.int64), ids[:, 1:]]
    names = ["input_ids", "attention_mask", "labels"]
    if packed:
        column = np.broadcast_to(np.arange(MSL) % (MSL // 2), (16, MSL))
        features += [MSL // 2 - 1 - column, column]
        names += ["attention_span", "position_ids"]
    data = np.stack(features, axis=1).astype(np.int32)
    published = storage.publish(directory / "examples_000000.h5", shard_image(data))
    digest = hash_bytes(data.tobytes())
    entry = {"name": "examples_000000.h5", "n_examples": len(data), "hash": published.hash}
    params = {
        "format": "vsl" if packed else "sample", "features": names, "max_sequence_length": MSL,
        "n_examples": len(data), "vocab_size": VOCABULARY, "eos_id": 0, "pad_id": 0,
        "rows_globally_shuffled": True, "seed": 0, "dataset_hash": digest,
        "files": [{**entry, "content_hash": digest}],
    }  # fmt: skip
    storage.write_json(directory / "data_params.json", params)
    return directory


def summarize(outcomes: list[Outcome]) -> Iterator[str]:
    """A table by release, then what did not train, by reason."""
    yield f"{'release':<16}{'files':>6}{'parse':>7}{'plan':>6}{'train':>7}"
    order = ("none", "parses", "plans", "trains")
    for release in (*dict.fromkeys(each.release for each in outcomes), "all"):
        chosen = [each for each in outcomes if release in (each.release, "all")]
        ranks = [order.index(each.reached) for each in chosen]
        counts = [sum(rank >= least for rank in ranks) for least in (1, 2, 3)]
        shown = "".join(f"{n:>{width}}" for n, width in zip(counts, (7, 6, 7), strict=True))
        yield f"{release:<16}{len(chosen):>6}{shown}"
    failed = [each for each in outcomes if each.reached != "trains"]
    reasons = Counter(re.sub(r"line \d+: ", "", each.reason) for each in failed)
    for reason, count in reasons.most_common():
        yield f"{count:>4}  {reason}"
    for each in failed:
        yield f"{each.release} {each.path.rpartition('nlp/')[2]}: {each.reached}: {each.reason}"


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--releases", nargs="+", default=RELEASES, metavar="TAG")
    options = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        plain = write_data(Path(scratch) / "plain", packed=False)
        packed = write_data(Path(scratch) / "packed", packed=True)
        for release in options.releases:
            for family, path in list_files(options.checkout, release):
                text = _git(options.checkout, "show", f"{release}:{path}")
                data = packed if "use_vsl: True" in text or "use_vsl: true" in text else plain
                outcomes.append(try_file(release, family, path, text, data))
    print("\n".join(summarize(outcomes)))


if __name__ == "__main__":
    main()
