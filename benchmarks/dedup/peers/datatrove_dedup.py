"""Near-duplicates by datatrove's four MinHash stages, as its example chains them.

    PYTHON peers/datatrove_dedup.py --out DIR [--bands 14 --rows 8] FILES...

Its own settings by default: word 5-grams of its English tokenizer (spaCy), xxhash64, 14 buckets of
8 hashes. One task and one worker a stage (the second stage needs one task a bucket; they run one
after the other). The kept documents are written by its JSON-lines writer, uncompressed. All FILES
must lie in one folder.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from documents import count_lines, print_summary, write_dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--bands", type=int, default=14)
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    config = MinhashConfig(num_buckets=options.bands, hashes_per_bucket=options.rows)
    work = options.out / "work"
    folder = Path(options.files[0]).parent
    for number, (steps, tasks) in enumerate(stages(folder, options.out, config, options.explain)):
        LocalPipelineExecutor(
            pipeline=steps, tasks=tasks, workers=1, logging_dir=str(work / f"logs-{number}")
        ).run()
    kept = [json.loads(line) for line in _lines(options.out / "kept")]
    removed = [json.loads(line) for line in _lines(options.out / "removed")]
    if options.explain:
        stays = {record["metadata"]["minhash_cluster_id"]: record["id"] for record in kept}
        named = [(r["id"], stays.get(r["metadata"]["minhash_cluster_id"])) for r in removed]
        write_dropped(options, named)
    settings = {"tokens": "word 5-grams", "bands": options.bands, "rows": options.rows}
    versions = {name: version(name) for name in ("datatrove", "spacy")}
    total = count_lines(options.files)
    print_summary(total, len(kept), settings, versions)


def stages(
    folder: Path, out: Path, config: MinhashConfig, explain: bool
) -> list[tuple[list[PipelineStep], int]]:
    """Steps and number of tasks of the four stages."""
    work = out / "work"

    def reader() -> JsonlReader:
        return JsonlReader(str(folder), glob_pattern="*.jsonl")

    def writer(name: str) -> JsonlWriter:
        return JsonlWriter(str(out / name), compression=None)

    signatures, buckets, clusters = (str(work / name) for name in ("sigs", "buckets", "clusters"))
    return [
        ([reader(), MinhashDedupSignature(signatures, config=config)], 1),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, clusters, config=config, save_cluster_id=explain)], 1),
        (
            [
                reader(),
                MinhashDedupFilter(
                    clusters,
                    exclusion_writer=writer("removed") if explain else None,
                    load_cluster_ids=explain,
                ),
                writer("kept"),
            ],
            1,
        ),
    ]


def _lines(folder: Path) -> list[str]:
    return [
        line
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]


if __name__ == "__main__":
    main()
