"""The story of packing: the shuffled stream of every split becomes rows, then HDF5 shards.

`prep run` tells it after the shuffle, `prep repack` for tokens of an earlier run.
"""

from collections.abc import Callable

from pipeline.config import Config
from pipeline.core.manifest import StageManifest
from pipeline.stage import Stage
from pipeline.stages.account import SplitCounts, split_accounts
from pipeline.stages.corpus import corpus_stage
from pipeline.stages.inverse import inverse_stage
from pipeline.stages.pack import PackVocabulary, pack_stage
from pipeline.stages.params import params_stage
from pipeline.stages.rows import rows_stage
from pipeline.stages.vsl import bins_stage, vsl_rows_stage

RunStage = Callable[[Stage], StageManifest]


def pack_streams(
    config: Config, vocabulary: PackVocabulary, clean: StageManifest, gather: StageManifest,
    run: RunStage,
) -> dict[str, SplitCounts]:  # fmt: skip
    """Pack the shuffled stream of every split as `pack.format` says; returns what was packed.

    `clean` gives the number of records of every clean task.
    """
    pack = _packed(config, vocabulary, clean, gather, run)
    run(inverse_stage(config, clean, gather, pack))
    counts = split_accounts(config, gather, pack)
    run(params_stage(config, vocabulary, gather, pack, counts))
    return counts


def _packed(
    config: Config, vocabulary: PackVocabulary, clean: StageManifest, gather: StageManifest,
    run: RunStage,
) -> StageManifest:  # fmt: skip
    match config.pack.format:
        case "corpus":
            return run(corpus_stage(config, vocabulary, clean, gather))
        case "vsl":
            rows = run(vsl_rows_stage(config, clean, gather, run(bins_stage(config, gather))))
        case "sample":
            rows = run(rows_stage(config, vocabulary.eos_id, clean, gather))
    return run(pack_stage(config, vocabulary, gather, rows))
