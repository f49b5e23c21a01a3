"""Text to near-duplicate-free tokens by datatrove: read, MinHash, filter, GPT-2 tokens.

    PYTHON peers/datatrove_tokens.py [--ftfy] --out DIR --vocabulary DIR FILES...

`--ftfy`: a stage before all others cleans each text and writes it, not compressed.
Its stages as its examples chain them: signatures, buckets, clusters, then read again, filter and
`DocumentTokenizer` (shuffled, EOS after every document, uint16). 9 buckets of 13 hashes as
SlimPajama has them, else its own settings: word 5-grams of its English tokenizer, xxhash64. One
task and one worker a stage (buckets need a task each; they run one after the other), which runs in
this process. FILES are all files of one folder.
"""

from copy import deepcopy
from pathlib import Path

from common import options_of, print_summary
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.formatters import FTFYFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter

BANDS, ROWS = 9, 13
EOS = "<|endoftext|>"


def main() -> None:
    options = options_of(__doc__, "--ftfy")
    texts = JsonlReader(str(options.files[0].parent), glob_pattern="*.jsonl.zst")
    stages = []
    if options.ftfy:
        cleaned = str(options.out / "cleaned")
        writer = JsonlWriter(cleaned, "${rank}.jsonl", compression=None)
        stages.append(([texts, FTFYFormatter(), writer], 1))
        texts = JsonlReader(cleaned)
    stages += stages_of(texts, options.out, options.vocabulary / "tokenizer.json")
    for number, (steps, tasks) in enumerate(stages):
        logs = str(options.out / "logs" / str(number))
        LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=logs).run()
    tokens = options.out / "tokens"
    documents = sum(file.stat().st_size for file in tokens.glob("*.ds.index")) // 8
    count = sum(file.stat().st_size for file in tokens.glob("*.ds")) // 2
    print_summary(documents, count, "datatrove", "tokenizers", "spacy")


def stages_of(
    texts: JsonlReader, out: Path, tokenizer: Path
) -> list[tuple[list[PipelineStep], int]]:
    """Steps and number of tasks of the four stages."""
    config = MinhashConfig(num_buckets=BANDS, hashes_per_bucket=ROWS)
    signatures, buckets, clusters = (str(out / name) for name in ("sigs", "buckets", "clusters"))
    return [
        ([texts, MinhashDedupSignature(signatures, config=config)], 1),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], BANDS),
        ([MinhashDedupCluster(buckets, clusters, config=config)], 1),
        (
            [
                deepcopy(texts),
                MinhashDedupFilter(clusters),
                DocumentTokenizer(str(out / "tokens"), str(tokenizer), eos_token=EOS, seed=1),
            ],
            1,
        ),
    ]


if __name__ == "__main__":
    main()
