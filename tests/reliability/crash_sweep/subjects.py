"""What the crash sweep kills: a toy of three stages, whole runs, `prep dedup`, an index."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core import hashes, journal, manifest, storage
from pipeline.core.journal import Journal
from pipeline.core.manifest import Shard
from pipeline.engine.executor import LocalExecutor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Result, Stage, Task, bytes_output

Subject = Callable[[Path], object]


@dataclass(frozen=True)
class ToyJob:
    name: str
    index: int
    inputs: tuple[Shard, ...] = ()


def toy_task(job: ToyJob, inputs: Inputs) -> Result:
    seen = b"".join(inputs.path(shard).read_bytes() for shard in job.inputs)
    text = f"{job.name} {job.index} {hashes.hash_bytes(seen)}\n".encode() * 40
    return Result((bytes_output(f"{job.name}/{job.index:06d}.bin", text),), {"documents": 1})


def toy_stage(name: str, inputs: Sequence[tuple[Shard, ...]]) -> Stage:
    tasks = [Task(f"{name} {i}", ToyJob(name, i, s), s) for i, s in enumerate(inputs)]
    return Stage(name=name, version=1, function=toy_task, tasks=tuple(tasks))


def run_toy(root: Path) -> None:
    with journal.hold_lock(root):
        storage.sweep_temps(root)
        runner = Runner(root, LocalExecutor(), Journal(root), Progress(quiet=True))
        first = runner.run(toy_stage("one", [()] * 4))
        second = runner.run(toy_stage("two", [(shard,) for shard in first.shards]))
        third = runner.run(toy_stage("three", [tuple(second.shards)] * 4))
        stages = (first, second, third)
        files = [{"path": s.path, "hash": s.hash} for stage in stages for s in stage.shards]
        manifest.write_sealed(root / "manifest.json", {"files": files})


def pipeline_subject(config: Path, overrides: tuple[str, ...] = ()) -> Subject:
    from pipeline.stories.run import run_preparation

    _load_kernels()
    return functools.partial(_run_pipeline, run_preparation, config, overrides)


def _load_kernels() -> None:
    """What every run would load or parse again, loaded once before the forks."""
    from dedup.find import warm_up
    from pipeline.cleaning import clean_array, short_mask
    from pipeline.tokenizers.engine import open_tokenizer

    warm_up("slimpajama")
    short_mask(clean_array(["schÃ¶n"]), 200)
    open_tokenizer("gpt2")


def _run_pipeline(run: Callable[..., object], config: Path, overrides: Any, root: Path) -> None:
    run(config, root, 0, overrides=overrides)


def dedup_subject(files: list[str]) -> Subject:
    """`prep dedup` of these files, repeated passages cut."""
    from pipeline.config.prep import DedupConfig, ReadConfig, SubstringsConfig
    from pipeline.stories.dedup import DEDUP, make_dedup_config
    from pipeline.stories.run import run_preparation

    _load_kernels()
    read = ReadConfig(max_bad_share=1.0, task_bytes=8 << 10)
    passages = SubstringsConfig(cut=True, min_bytes=50)
    loaded = make_dedup_config(files, DedupConfig(substrings=passages), read=read)
    return lambda root: run_preparation(loaded, root, 0, story=DEDUP)


def index_subject(files: list[str]) -> Subject:
    """An index of the first file, to which the others are added."""
    from pipeline.config.prep import DedupConfig
    from pipeline.stories import index as dedup_index
    from pipeline.stories.earlier import make_settings

    settings = make_settings(DedupConfig(), "text")
    work = dedup_index.IndexOptions(workers=0, max_bad_share=1.0)

    def grow(root: Path) -> None:
        dedup_index.create_index(root, files[:1], settings, None, work)
        dedup_index.add_to_index(root, files[1:], None, work)

    return grow


def runs_of(root: Path) -> list[Path]:
    """The run directories: the batches of an index, or the one that `root` is."""
    return sorted(root.glob("batches/*")) or [root]


def tree_hash(root: Path) -> str:
    """One hash over all that is published."""
    runs = runs_of(root)
    if runs == [root]:
        return hashes.tree_hash(root)
    return " ".join([hashes.hash_file(root / "index.json"), *map(hashes.tree_hash, runs)])
