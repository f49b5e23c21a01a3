"""What stages hand on that read documents, screen them and decide which are kept."""

from itertools import chain
from typing import Any

from pipeline.runs import layout
from pipeline.runs.views.stage_output import (
    StageOutput,
    counter,
    file_at,
    optional_counter,
    optional_setting,
    parts_of,
    setting,
    shards_in,
)

SourceAccounts = dict[str, dict[str, Any]]
"""Source -> what its `Account` counted, as plain data."""


class EvalIndexOutput(StageOutput):
    """Evaluation items that are looked for."""

    parts = file_at(layout.EVAL_PARTS)
    grams = file_at(layout.EVAL_GRAMS)


class PiecesOutput(StageOutput):
    """Parts of raw shards: [input, path, size, hash] of the one behind each task, its parts, and
    what is wrong with it."""

    inputs = counter(list[tuple[str, str, int, str]], "inputs")
    parts = counter(list[dict[str, Any]], "parts")
    problem = counter(str, "problem")


class CleanOutput(StageOutput):
    """Documents and what did not become one; `unlabelled` by input, `masked` by source and kind."""

    documents = shards_in("documents")
    drops = shards_in("drops")
    records = counter(int, "records")
    bad = counter(int, "bad")
    inputs = counter(list[tuple[str, str, int, str]], "inputs")
    sources = counter(SourceAccounts, "sources")
    unlabelled = optional_counter(dict[str, int](), "unlabelled")
    masked = optional_counter(dict[str, dict[str, int]](), "masked")
    fix_text = optional_setting(True, "fix_text")
    ftfy = optional_setting(dict[str, Any](), "ftfy")
    mask = optional_setting(list[Any](), "mask")
    _skipped = counter(list[tuple[str, str, str]], "skipped_shards")

    @property
    def hashes(self) -> dict[tuple[str, str], str]:
        """(input, path) -> content hash, of every raw shard."""
        return {(i, p): digest for task_inputs in self.inputs for i, p, _, digest in task_inputs}

    @property
    def skipped(self) -> dict[tuple[str, str], str]:
        """(input, path) -> what is wrong with it, of the raw shards that were left out."""
        return {(i, p): why for task_files in self._skipped for i, p, why in task_files}

    @property
    def documents_by_source(self) -> list[dict[str, int]]:
        """Source -> rows of the documents shard: what the length filter left."""
        return [
            {
                name: account["documents"]["documents"]
                - sum(tally["documents"] for tally in account["dropped"].values())
                for name, account in sources.items()
            }
            for sources in self.sources
        ]


class FindingsOutput(StageOutput):
    """Evidence on every documents shard, and decisions where the stage makes its own."""

    counts = counter(int, "documents")


class SignalsOutput(StageOutput):
    """What was measured of every document, a shard for each documents shard."""

    signals = shards_in("signals")


class WithheldOutput(FindingsOutput):
    """Decisions on documents that were taken down; tables of these with their hashes."""

    takedowns = setting(list[tuple[str, str]], "takedowns")


class DecisionsOutput(FindingsOutput):
    """All evidence, what was decided, and what of it the policy decided alone."""

    evidence = shards_in("decisions", layout.EVIDENCE_SHARD)
    decisions = shards_in("decisions", layout.DECISIONS_SHARD)
    by_policy = shards_in("decisions", layout.POLICY_SHARD)


class VerdictsOutput(StageOutput):
    """The decisions that hold."""

    decisions = shards_in("verdicts", layout.DECISIONS_SHARD)
    parts = parts_of(layout.DECISIONS)
    policy = setting(str, "policy")
    _quarantined = counter(list[int], "quarantined")

    @property
    def quarantined(self) -> list[int]:
        """The numbers of the documents shards with quarantined documents."""
        return list(chain.from_iterable(self._quarantined))


class KeepOutput(StageOutput):
    """The end of every document; `sources`: [documents, duplicates] of each; `draws`: the fields of
    `splits.KeptDraws`; `edges`: rows of clusters.parquet."""

    states = shards_in("keep")
    edges = shards_in("edges")
    draws = counter(dict[str, list[Any]], "draws")
    counts = counter(int, "documents")
    kept = counter(int, "kept")
    duplicate = counter(int, "duplicate")
    quarantined = counter(int, "quarantined")
    dropped = counter(int, "dropped")
    sources = counter(dict[str, tuple[int, int]], "sources")
    seed = setting(int, "seed")
    held_out = setting(list[tuple[str, float]], "splits")


class QuarantineOutput(StageOutput):
    """Texts that are kept apart."""

    texts = shards_in(layout.QUARANTINE)


class WordRunsOutput(StageOutput):
    """Spellings of documents shards: how many rows each shard has, its path and hash and the hash
    of its shard of quarantine/ (empty: none), what `count_texts` counts of it; pairs of a spelling
    and a text."""

    runs = shards_in(layout.WORD_RUNS)
    rows = counter(list[int], "rows")
    shards = counter(list[list[str]], "shards")
    texts = counter(list[list[int]], "texts")
    pairs = counter(int, "pairs")


class WordsOutput(StageOutput):
    """Spellings with the rows of the texts that hold them, by range of hashes."""

    words = shards_in(layout.WORDS)
