"""`prep repack`: the tokens of a finished run packed again, without tokenizing.

The result is another run directory; the tokens are read where they are. What is not changed is as
in the run, splits and mixture always, so with the seed of the run the HDF5 files equal, byte for
byte, those that `prep run` would have written.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.config.prep import Config
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.manifest import Shard, StageManifest, read_manifest
from pipeline.core.words import pluralise
from pipeline.engine.progress import Progress
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Stage, borrow, tables_stage
from pipeline.runs import splits
from pipeline.runs.origin import ORIGIN
from pipeline.runs.run_directory import read_finished, read_stage
from pipeline.runs.views.data_set import (
    AccountOutput,
    DocumentsOutput,
    GatherOutput,
    MixtureOutput,
    PackOutput,
    ScatterOutput,
    SourcesOutput,
    TokensOutput,
)
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.shards import pack_streams
from pipeline.stages.shuffle.gather import gather_streams
from pipeline.stages.shuffle.scatter import scatter_tokens
from pipeline.stages.tables import repack_account_stage
from pipeline.stories.loop import Manifest, StageRecord, StoryRun
from pipeline.takedown.record import check_is_masked_nowhere

STORY = "repack"
TOKENS = "tokens"
MIXTURE = "mixture"


@dataclass(frozen=True, kw_only=True)
class TokenizedRun:
    """A finished run whose tokens are there: what its stages handed on, and its tables and
    tokenizer. `split_tokens`: how many each split has of every task, copies included."""

    directory: Path
    name: str
    clean: CleanOutput
    documents: DocumentsOutput
    tokens: TokensOutput
    split_tokens: list[dict[str, int]]
    mixture: MixtureOutput | None
    gather: GatherOutput
    pack: PackOutput
    account: AccountOutput
    tables: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class RepackOptions:
    """What is to be different; None stays as it is in the run."""

    max_sequence_length: int | None = None
    format: str | None = None
    packer: str | None = None
    seed: int | None = None
    shard_bytes: int | str | None = None
    shard_sequences: int | None = None
    compression: str | None = None


def repack_run(
    directory: Path,
    out: Path,
    changes: RepackOptions | None = None,
    workers: int | None = None,
    *,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Pack the tokens of the run in `directory` into `out`; finished work is reused.

    Raises ConfigError for changes that make no sense, InputError when there is no finished run with
    tokens, and the errors of `pipeline.stories.run.run_preparation`.
    """
    run = open_tokenized(directory)
    config = make_repack_config(run, changes or RepackOptions())
    _check_place(directory, out)
    work = StoryRun(
        out=out,
        config=run.name,
        story=STORY,
        workers=workers,
        cluster=cluster or LOCAL,
        size=sum(shard.size for shard in run.tokens.tokens),
        progress=progress or Progress(quiet=True),
        noted={ORIGIN: str(run.directory)},
    )
    return work.hold(partial(_tell, run, config))


def _tell(run: TokenizedRun, config: Config, record: StageRecord) -> None:
    def do(stage: Stage) -> StageManifest:
        return record(borrow(stage, run.directory, (TOKENS, MIXTURE)))

    do(tables_stage(run.directory, run.tables))
    streams = gather_streams(config, scatter_tokens(config, run.tokens, run.mixture, do), do)
    packed = pack_streams(config, run.pack, run.clean, streams, do)
    do(repack_account_stage(run.directory, run.account.ledger, packed))


def open_tokenized(directory: Path) -> TokenizedRun:
    """Raises InputError unless there is a finished run whose tokens were not deleted."""
    manifest = read_finished(directory)
    mixture = read_manifest(manifest_path(directory, MIXTURE))
    tokens = TokensOutput(read_stage(directory, "tokenize"))
    gone = [s.path for s in tokens.tokens if not (directory / s.path).is_file()]
    if gone:
        mend = "with `keep: lineage`" if TOKENS in manifest["removed"] else "with its config"
        raise InputError(
            f"{directory}: {gone[0]} is missing ({pluralise(len(gone), 'file')} of {TOKENS}/ in "
            f"all) and its tokens are needed: run it again {mend}"
        )
    check_is_masked_nowhere(directory, "other rows")
    documents = DocumentsOutput(read_stage(directory, "documents"))
    scattered = ScatterOutput(read_stage(directory, "scatter")) if mixture else None
    return TokenizedRun(
        directory=directory.resolve(),
        name=str(manifest["config"]),
        clean=CleanOutput(read_stage(directory, "clean")),
        documents=documents,
        tokens=tokens,
        split_tokens=scattered.tokens if scattered else tokens.of_splits,
        mixture=MixtureOutput(mixture) if mixture is not None else None,
        gather=GatherOutput(read_stage(directory, "gather")),
        pack=PackOutput(read_stage(directory, "pack")),
        account=AccountOutput(read_stage(directory, "account")),
        tables=(
            *documents.parts,
            SourcesOutput(read_stage(directory, "sources")).table,
            *read_stage(directory, "tokenizer").shards,
        ),
    )


def make_repack_config(run: TokenizedRun, changes: RepackOptions) -> Config:
    """The packing half of a config: as in the run, except for the changes. Raises ConfigError
    naming the option that is wrong."""
    before = run.pack
    layout_name = changes.format or before.format
    pack = {
        "bucket_tokens": run.gather.bucket_tokens,
        "max_sequence_length": changes.max_sequence_length or before.max_sequence_length,
        "format": layout_name,
        "packer": changes.packer or (before.packer if layout_name == "vsl" else None),
    }
    value = {
        "name": run.name,
        "seed": run.tokens.seed if changes.seed is None else changes.seed,
        "inputs": ({"name": "tokens", "path": ""},),
        "splits": {name: 0.0 for name in run.tokens.of_splits[0] if name != splits.TRAIN},
        "pack": pack,
        "hdf5": _shards(before, changes, layout_name),
    }
    try:
        return Config.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        raise ConfigError(f"{_option(first['loc'], changes)}: {message}") from None


def _shards(before: PackOutput, changes: RepackOptions, layout_name: str) -> dict[str, Any]:
    """Size and compression of the shards: one size given takes the place of both."""
    value: dict[str, Any] = {"compression": changes.compression or before.compression}
    if changes.shard_bytes is not None:
        return {**value, "shard_bytes": changes.shard_bytes}
    value["shard_bytes"] = before.shard_bytes
    sequences = before.shard_sequences if layout_name != "corpus" else None
    return {**value, "shard_sequences": changes.shard_sequences or sequences}


_OPTIONS = {
    "pack.max_sequence_length": "msl",
    "pack.format": "format",
    "pack.packer": "packer",
    "pack": "packer",
    "seed": "seed",
    "hdf5.shard_bytes": "shard-bytes",
    "hdf5.shard_sequences": "shard-sequences",
    "hdf5": "shard-sequences",
    "hdf5.compression": "compression",
}


def _option(location: tuple[Any, ...], changes: RepackOptions) -> str:
    """The option behind a place in the config, with its value."""
    option = _OPTIONS[".".join(str(part) for part in location)]
    name = "max_sequence_length" if option == "msl" else option.replace("-", "_")
    value = getattr(changes, name)
    return f"--{option}" + ("" if value is None else f" {escape_text(str(value))}")


def _check_place(directory: Path, out: Path) -> None:
    """Raises ConfigError when `out` would mix with another run."""
    run, place = directory.resolve(), out.resolve()
    if place == run or run in place.parents or place in run.parents:
        raise ConfigError(f"--out {out}: expected a directory apart from the run {directory}")
    if manifest_path(out, "clean").exists():
        raise ConfigError(f"--out {out}: holds another run; give a new or empty directory")
