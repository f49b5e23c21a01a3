"""data_params.json beside the shards of every split: what readers must know, with hashes."""

from dataclasses import dataclass
from typing import Any

from pipeline.config import Config
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.core.storage import canonical_json
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, LAYOUTS, VSL, FormatName
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output
from pipeline.stages.account import SplitCounts
from pipeline.stages.pack import PackVocabulary
from pipeline.stages.rows import split_streams


@dataclass(frozen=True)
class ParamsJob:
    """One split's shards with their lengths (rows, or tokens of a corpus), and its counts."""

    shards: tuple[Shard, ...]
    lengths: tuple[int, ...]
    format: FormatName
    vocab_size: int
    eos_id: int
    seed: int
    split: str
    counts: SplitCounts


def _params(job: ParamsJob, inputs: Inputs) -> Result:
    """In the spirit of Model Zoo's."""
    names = [shard.path.rpartition("/")[2] for shard in job.shards]
    files = [
        {"name": n, "n_examples": r, "hash": s.hash, "content_hash": s.content_hash}
        for n, r, s in zip(names, job.lengths, job.shards, strict=True)
    ]
    content = fingerprint_of({"files": [(f["name"], f["content_hash"]) for f in files]})
    value = {
        "format": job.format,
        "features": list(LAYOUTS[job.format].features),
        "max_sequence_length": job.counts["max_sequence_length"],
        "n_examples": sum(job.lengths),
        "vocab_size": job.vocab_size,
        "eos_id": job.eos_id,
        "pad_id": job.eos_id,
        "rows_globally_shuffled": True,
        "seed": job.seed,
        "split": job.split,
        "files": files,
        "dataset_hash": content,
        "documents": job.counts["documents"],
        "h5_dataset_stats": _statistics(job),
    }
    path = f"hdf5/{job.split}/{DATA_PARAMS}"
    return Result((bytes_output(path, canonical_json(value)),))


def _statistics(job: ParamsJob) -> dict[str, Any]:
    """Names as in Model Zoo's statistics."""
    counts = job.counts
    if job.format == CORPUS.name:
        return {"num_tokens": counts["tokens"], "stream_tokens": counts["tokens"]}
    value: dict[str, Any] = {
        "num_sequences": counts["rows"],
        "num_tokens": counts["rows"] * counts["max_sequence_length"],
        "non_pad_tokens": counts["mask_sum"],
        "loss_valid_tokens": counts["mask_sum"],
        "stream_tokens": counts["tokens"],
    }
    if job.format == VSL.name:
        value["num_pad_tokens"] = counts["padding"]
        value["num_sequences_before_packing"] = counts["segments"]
    return value


def params_stage(
    config: Config, vocabulary: PackVocabulary, gather: StageManifest, pack: StageManifest,
    counts: dict[str, SplitCounts],
) -> Stage:  # fmt: skip
    """One data_params.json per split; `counts` are those of `split_accounts`."""
    tasks = []
    length_name = "tokens" if config.pack.format == CORPUS.name else "rows"
    for stream in split_streams(gather):
        records = [t for t in pack.tasks if t.counters["split"] == stream.name]
        shards = tuple(t.shards[0] for t in records)
        job = ParamsJob(
            shards, tuple(t.counters[length_name] for t in records), config.pack.format,
            vocabulary.vocab_size, vocabulary.eos_id, config.seed, stream.name,
            counts[stream.name],
        )  # fmt: skip
        tasks.append(Task(f"parameters of {stream.name}", job, shards))
    return Stage("params", 2, _params, tuple(tasks))
