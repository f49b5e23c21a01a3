"""The story of a preparation: config -> plan -> stages -> manifest -> report."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.cleaning.mask import check_masks
from pipeline.config.prep import Config, LoadedConfig
from pipeline.core.errors import InputError, escape_text
from pipeline.core.mirror.fetching import fetch
from pipeline.demo import quickstart
from pipeline.engine.levels import Bundle
from pipeline.engine.stage import RunStage
from pipeline.runs.run_directory import is_run
from pipeline.runs.views.cuts import CutsOutput, LinesOutput, RedactionsOutput, SubstringsOutput
from pipeline.runs.views.data_set import (
    ClusterClassesOutput,
    DocumentsOutput,
    GroupsOutput,
    MixtureOutput,
    QuotasOutput,
    ScatterOutput,
    TokenizerOutput,
    TokensOutput,
)
from pipeline.runs.views.documents import (
    CleanOutput,
    DecisionsOutput,
    KeepOutput,
    PiecesOutput,
    SignalsOutput,
    VerdictsOutput,
)
from pipeline.runs.views.duplicates import ClusterSizesOutput, ClustersOutput
from pipeline.stages.batches import Batch
from pipeline.stages.clean import clean_stage
from pipeline.stages.cuts import cut_table_stage, cuts_stage, redactions_stage
from pipeline.stages.findings.withheld import quarantine_stage
from pipeline.stages.lines import LineRules, find_repeats, units_stage
from pipeline.stages.mixture.copies import (
    MixtureInputs,
    check_mixture,
    mixture_accounts,
    mixture_stage,
    quotas_stage,
    source_documents,
)
from pipeline.stages.mixture.groups import MixtureGroups, check_groups, groups_stage, load_groups
from pipeline.stages.mixture.quotas import check_sources, is_asked, size_classes
from pipeline.stages.mixture.sizes import cluster_classes_stage, cluster_sizes_stage
from pipeline.stages.pieces import make_reading, pieces_stage
from pipeline.stages.plan import Reading, ReadPlan, plan_reading, plan_stage
from pipeline.stages.report import report_stage
from pipeline.stages.shards import pack_streams
from pipeline.stages.shuffle.gather import gather_streams
from pipeline.stages.shuffle.scatter import scatter_tokens
from pipeline.stages.tables import account_stage, documents_stage, sources_stage
from pipeline.stages.tokenize import tokenize_stage, tokenizer_stage
from pipeline.stories import selection
from pipeline.stories.earlier import load_earlier
from pipeline.stories.loop import StageRecord
from pipeline.takedown.record import TakedownState, read_takedown_state
from pipeline.tokenizers.arrangement import FillInMiddle
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition
from pipeline.tokenizers.fill_in_middle import find_markers

BUILTIN_QUICKSTART = f"builtin:{quickstart.QUICKSTART}"


Unchanged = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A checked config with everything it names found, before anything is written. `number` is that
    of the generation; `known_sources` are the source labels that earlier ones have; `settings` is
    what its manifest notes of the config, with `pack.append`."""

    config: Config
    screening: selection.ScreeningRequest
    plan: ReadPlan
    earlier: tuple[Batch, ...]
    tokenizer: TokenizerDefinition
    fim: FillInMiddle | None
    groups: MixtureGroups | None
    out: Path
    takedowns: TakedownState
    number: int = 0
    known_sources: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """What a run does: its name and the function that runs every stage in order.

    The function takes what was prepared; what brings one stage up to date (or only looks, for `prep
    plan`); and whether the raw shards noted in a clean task's counters are unchanged.
    """

    name: str
    tell: Callable[[Preparation, StageRecord, Unchanged], object]


def prepare(loaded: LoadedConfig, out: Path | None) -> Preparation:
    """Check the whole config and find the inputs. Raises ConfigError or InputError; writes nothing
    but, on first use, the quickstart corpus in the user's cache."""
    config = loaded.config
    builtin = {}
    if any(i.path == BUILTIN_QUICKSTART for i in config.inputs):
        builtin[BUILTIN_QUICKSTART] = quickstart.collect() / "*.jsonl.zst"
    out = out or Path("runs") / config.name
    request = selection.check_screening(config, loaded.base, out)
    plan = plan_reading(config, loaded.base, builtin, out, is_run(out))
    earlier = load_earlier(config.dedup, loaded.base)
    check_masks(config.clean.mask, config.clean.phone_regions)
    tokenize = config.tokenize
    name = tokenize.tokenizer if tokenize.tokenizer == GPT2 else loaded.base / tokenize.tokenizer
    definition = load_definition(name, tokenize.eos, tokenize.special_tokens, tokenize.bos)
    return Preparation(
        config=config,
        screening=request,
        plan=plan,
        earlier=earlier,
        tokenizer=replace(definition, engine=tokenize.engine),
        fim=_make_fim(config, definition),
        groups=load_groups(config, request.signals),
        out=out,
        takedowns=read_takedown_state(out),
    )


def _make_fim(config: Config, definition: TokenizerDefinition) -> FillInMiddle | None:
    """How documents are rearranged; None where that is off."""
    fim = config.tokenize.fim
    if not fim.rate:
        return None
    prefix, middle, suffix = find_markers(definition, (fim.prefix, fim.middle, fim.suffix))
    return FillInMiddle(
        rate=fim.rate,
        spm_rate=fim.spm_rate,
        max_characters=fim.max_characters,
        prefix_id=prefix,
        middle_id=middle,
        suffix_id=suffix,
        seed=config.seed,
    )


def _preparation(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """The whole way from raw shards to HDF5."""
    config = prepared.config
    compiled = selection.compile_screening(prepared.screening, run)
    reading, clean = read_inputs(prepared, run, unchanged)
    if is_asked(config.mixture) and prepared.groups is None:
        before = dict.fromkeys(prepared.known_sources, 0)
        check_sources(config.mixture, {**before, **source_documents(clean)})
    taken_down = prepared.takedowns.dropped
    screened = selection.screening(prepared.screening, reading, clean, compiled, run, taken_down)
    keep = selection.deduplicate(config, prepared.earlier, clean, screened, run)
    check_survivors(keep, _NOTHING_NEW if prepared.number else "")
    sizes = _cluster_sizes(prepared, run)
    verdicts = VerdictsOutput(run["verdicts"])
    run(quarantine_stage(clean, verdicts, config.screen.quarantine_days))
    tokenizer = TokenizerOutput(run(tokenizer_stage(prepared.tokenizer, prepared.fim)))
    cuts = _cuts(prepared, clean, keep, verdicts, run)
    tokenizing = tokenize_stage(prepared.tokenizer, tokenizer, clean, keep, cuts, fim=prepared.fim)
    tokens = TokensOutput(run(tokenizing))
    run(sources_stage(reading, clean))
    documents = DocumentsOutput(run(documents_stage(clean, keep, verdicts, tokens)))
    mixture = _mix(prepared, clean, tokens, documents, sizes, run)
    streams = gather_streams(config, scatter_tokens(config, tokens, mixture, run), run)
    packed = pack_streams(config, prepared.tokenizer, clean, streams, run)
    mixed = mixture_accounts(mixture, ScatterOutput(run["scatter"])) if mixture else {}
    run(account_stage(clean, documents, packed, mixed))
    passages: tuple[str, ...] = ()
    if config.dedup.substrings.cut:
        found = SubstringsOutput(run["substrings"])
        passages = (selection.note_passages(config.dedup, found),)
    notes = (
        *selection.note_dedup(config.dedup),
        *passages,
        *prepared.plan.notes,
        *describe_unlabelled(config, clean),
    )
    run(report_stage(config.name, run.manifests, notes))


PREPARATION = Story("prepare", _preparation)


def _cluster_sizes(prepared: Preparation, run: StageRecord) -> ClusterSizesOutput | None:
    """The documents that each kept one stands for, where the mixture asks about them."""
    if prepared.config.mixture.cluster_weights is None:
        return None
    clusters = ClustersOutput(run["clusters"])
    first_new = sum(batch.total for batch in prepared.earlier)
    return ClusterSizesOutput(run(cluster_sizes_stage(clusters, first_new)))


def _mix(
    prepared: Preparation,
    clean: CleanOutput,
    tokens: TokensOutput,
    documents: DocumentsOutput,
    sizes: ClusterSizesOutput | None,
    run: StageRecord,
) -> MixtureOutput | None:
    """How often each document is in the stream; None where that is once."""
    config = prepared.config
    if not is_asked(config.mixture):
        return None
    grouped = classes = quotas = None
    if prepared.groups is not None:
        grouped = _find_groups(prepared.groups, clean, documents, run)
    if sizes:
        of_size = size_classes(config.mixture)
        classified = cluster_classes_stage(of_size, clean, documents, grouped, sizes, run)
        classes = ClusterClassesOutput(run(classified))
    mixed = MixtureInputs(
        config=config.mixture,
        seed=config.seed,
        clean=clean,
        documents=grouped or documents,
        classes=classes,
    )
    if config.mixture.weights is not None:
        quotas = QuotasOutput(run(quotas_stage(mixed)))
    mixture = MixtureOutput(run(mixture_stage(mixed, tokens, quotas)))
    check_mixture(mixture)
    return mixture


def describe_unlabelled(config: Config, clean: CleanOutput) -> list[str]:
    """A line for every input with records that lack its `source_key`."""
    counts: Counter[str] = Counter()
    for unlabelled in clean.unlabelled:
        counts.update(unlabelled)
    return [
        f"input {source.name}: {counts[source.name]:,} records have no {source.source_key} and "
        f"count as the source {source.name}"
        for source in config.inputs
        if counts[source.name]
    ]


def describe_left_out(clean: CleanOutput) -> list[str]:
    """A line for every raw shard that was left out as damaged."""
    return [
        f"{source}: {escape_text(path)} was left out: {escape_text(why)} (read.on_bad_shard: skip)"
        for (source, path), why in sorted(clean.skipped.items())
    ]


def _find_groups(
    groups: MixtureGroups,
    clean: CleanOutput,
    documents: DocumentsOutput,
    run: StageRecord,
) -> GroupsOutput:
    """The documents that a mixture of groups reads."""
    measured = SignalsOutput(run["signals"]) if groups.signals else None
    found = GroupsOutput(run(groups_stage(groups, clean, documents, measured)))
    check_groups(found)
    return found


def _cuts(
    prepared: Preparation,
    clean: CleanOutput,
    keep: KeepOutput,
    verdicts: VerdictsOutput,
    run: StageRecord,
) -> CutsOutput | None:
    """What is cut from the texts before they are tokenized: repeated lines or paragraphs, repeated
    passages, and what the policy redacts."""
    lines, units, redactions = prepared.config.lines, None, None
    repeats: tuple[Bundle, ...] = ()
    if lines.unit != "none":
        rules = LineRules(lines.unit, lines.min_characters, lines.min_documents, lines.sources)
        units = LinesOutput(run(units_stage(clean, keep, rules)))
        repeats = find_repeats(units, rules, prepared.config.dedup.memory, run)
    substrings = selection.find_repeated_passages(prepared.config.dedup, clean, keep, run)
    if prepared.screening.redacts:
        decided = DecisionsOutput(run["decisions"])
        redactions = RedactionsOutput(run(redactions_stage(clean, decided, verdicts)))
    if units is None and redactions is None and substrings is None:
        return None
    cuts = CutsOutput(run(cuts_stage(clean, units, repeats, redactions, substrings)))
    run(cut_table_stage(cuts))
    return cuts


def read_inputs(
    prepared: Preparation, run: RunStage, unchanged: Unchanged
) -> tuple[Reading, CleanOutput]:
    """What every story begins with: the plan, and every raw shard read and checked."""
    cutting = pieces_stage(prepared.config, prepared.plan, unchanged)
    reading = make_reading(prepared.plan, PiecesOutput(run(cutting)) if cutting else None)
    run(plan_stage(reading))
    reader = clean_stage(prepared.config, reading, unchanged, prepared.takedowns.files)
    clean = CleanOutput(run(reader))
    records, bad, most = sum(clean.records), sum(clean.bad), prepared.config.read.max_bad_share
    if bad > most * records:
        raise InputError(
            f"{bad:,} of {records:,} records are bad ({100 * bad / records:.2f} %), more than "
            f"read.max_bad_share allows ({100 * most:g} %): "
            f"{_describe_bad_records(prepared, clean)}; drops/ lists all with file and line; fix "
            "the input or raise the limit"
        )
    return reading, clean


def _describe_bad_records(prepared: Preparation, clean: CleanOutput) -> str:
    """How many for each reason, and where the first of them is."""
    counts: Counter[str] = Counter()
    place = ""
    for shard in clean.drops:
        columns = ["reason", "bad_record", "path_id", "line", "byte_offset"]
        table = pq.read_table(fetch(prepared.out / shard.path), columns=columns)
        bad = table.filter(table["bad_record"])
        for row in bad["reason"].value_counts().to_pylist():
            counts[row["values"]] += row["counts"]
        if len(bad) and not place:
            [first] = bad.slice(0, 1).to_pylist()
            name = escape_text(prepared.plan.files[first["path_id"]].path)
            place = f", the first at {name}:{first['line'] or first['byte_offset']}"
    listed = (f"{count:,} {reason}" for reason, count in counts.most_common())
    return (", ".join(listed) or "all in shards that were left out") + place


_NOTHING_NEW = (
    "; leave the new files out until there are others with documents that earlier generations have "
    "not: nothing was changed"
)


def check_survivors(keep: KeepOutput, mend: str = "") -> None:
    """Raises InputError when nothing is left; `mend` is what to do about it."""
    if not sum(keep.kept):
        raise InputError(
            f"no document is left of the {sum(keep.counts):,} that reached the keep-list "
            f"({sum(keep.duplicate):,} duplicates, {sum(keep.quarantined):,} quarantined, "
            f"{sum(keep.dropped):,} dropped); see drops/, clusters.parquet and decisions.parquet"
            + mend
        )
