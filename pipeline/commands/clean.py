"""`prep clean` and `prep screen`, stages of a run by themselves: their options, one call each, and
what they print: what stayed of every source and why the rest left; documents by decision and rule,
and what was found.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands import options
from pipeline.commands.run import print_outputs, print_sources, read_summary, show_run_plan
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core.errors import ConfigError
from pipeline.core.places import open_place
from pipeline.runs import layout
from pipeline.runs.views.documents import CleanOutput

if TYPE_CHECKING:
    from pipeline.stories.loop import Manifest


def clean(
    out: options.Place,
    files: list[str] | None = None,
    config: str | None = None,
    min_length: Annotated[int | None, typer.Option(min=0)] = None,
    fix_text: bool | None = None,
    mask: str | None = None,
    language: str | None = None,
    gopher: bool = False,
    gopher_repetition: bool = False,
    c4: bool = False,
    bad_words: Path | None = None,
    text_key: str | None = None,
    format_: str = "jsonl.zst",
    set_: options.SetOption = None,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Repair the text of records, and drop short ones and those that rules of your choice refuse.

    Every record that is left out is listed in documents.parquet with its reason. Finished work is
    reused; the same command resumes an interrupted run.

    FILES: files, directories or globs [default: the inputs of --config]
    --out DIR: run directory; the records go to OUT/cleaned
    --config FILE: a prep config; its sections read, clean and filters apply
    --min-length: drop documents with fewer characters [default: 200]
    --fix-text/--no-fix-text: repair text with ftfy and normalise it to NFC [default: yes]
    --mask KINDS: what to mask: email, ip, phone, separated by commas
    --language CODES: languages to keep, such as en,ar
    --gopher: apply Gopher's quality rules
    --gopher-repetition: apply Gopher's repetition rules
    --c4: apply C4's rules for documents
    --bad-words FILE: list of words; with --c4, documents with one are dropped
    --text-key FIELD: field or column that holds the text
    --format NAME: jsonl.zst, jsonl.gz, jsonl, parquet or an output format of an installed package

    Examples:
    prep clean corpus/*.jsonl.zst --out cleaned
    prep clean web/ --out cleaned --language en,ar --gopher --gopher-repetition --mask email,ip
    prep clean --config pile.yaml --out cleaned --set filters.gopher.min_words=20
    What a rule dropped: `prep inspect cleaned --dropped gopher_word_count`
    """
    from pipeline.engine.progress import Progress
    from pipeline.sources.output_format import choose_form
    from pipeline.stories.clean import CleaningOptions, clean_settings, make_clean_story
    from pipeline.stories.preparation import prepare
    from pipeline.stories.run import run_preparation

    form = choose_form(format_)
    changes = CleaningOptions(
        min_length=min_length,
        fix_text=fix_text,
        mask=mask,
        language=language,
        gopher=gopher,
        gopher_repetition=gopher_repetition,
        c4=c4,
        bad_words=bad_words,
        text_key=text_key,
    )
    loaded = clean_settings(config, files or (), changes, tuple(set_ or ()))
    story = make_clean_story(form)
    if dry_run:
        return show_run_plan(prepare(loaded, out), as_json, story)
    manifest = run_preparation(
        loaded,
        out,
        workers,
        cluster=options.read_cluster(cluster),
        progress=Progress(as_json=as_json),
        story=story,
    )
    return show_clean_run(manifest, as_json)


def show_clean_run(manifest: "Manifest", as_json: bool) -> None:
    """A finished `prep clean`: documents by source, reasons, and where things stand."""
    masked: Counter[str] = Counter()
    for by_source in CleanOutput(manifest.stages["clean"]).masked:
        for kinds in by_source.values():
            masked.update(kinds)
    summary = read_summary(manifest)
    if as_json:
        return print_json({**summary, "masked": dict(masked)})
    sources = summary["ledger"]["sources"]
    reasons: Counter[str] = Counter()
    dropped = {}
    for name, source in sources.items():
        for tallies in (source["bad"], source["dropped"]):
            reasons.update({reason: tally["documents"] for reason, tally in tallies.items()})
        documents = sum(tally["documents"] for tally in source["dropped"].values())
        dropped[name] = {"dropped": documents + source["quarantined"]["documents"]}
    print_sources(sources, ("records", "bad", "dropped", "kept", "MB", "kept MB"), dropped)
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = ((reason, f"{count:,}") for reason, count in ordered)
    show_table(("reason", ">records"), rows, title="why records left")
    if masked:
        print_line("masked: " + ", ".join(f"{count:,} {kind}" for kind, count in masked.items()))
    names = (f"{layout.CLEANED}/", "drops/", layout.DOCUMENTS, layout.LEDGER, layout.MANIFEST)
    return print_outputs(manifest, *names)


def screen(
    files: list[str] | None = None,
    out: Annotated[Path | None, options.IN_BUCKET] = None,
    registry: list[Path] | None = None,
    policy: str | None = None,
    origins: list[Path] | None = None,
    optout: list[Path] | None = None,
    config: str | None = None,
    text_key: str | None = None,
    set_: options.SetOption = None,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Look for listed origins, works, licences and opt-outs in documents, and decide by a policy.

    The result is evidence and decisions, not a data set. A match is a text overlap or a statement
    in the data, not a finding about permission. No match is not evidence of absence. This is not
    legal advice.

    FILES: files, directories or globs; or with --policy alone, a finished run directory
    --out DIR: run directory of the result
    --registry DIR: a registry of works, repeatable
    --policy FILE: the policy, which decides what follows from evidence
    --origins FILE: a list of origins, repeatable
    --optout FILE: captured opt-outs, repeatable
    --config FILE: a prep config to take everything else from
    --text-key FIELD: field or column that holds the text

    Examples:
    prep screen corpus/*.jsonl.zst --out screened --registry works/
    prep screen --config pile.yaml --out screened --policy policy.yaml
    What another policy would decide, without looking at the documents again:
    prep screen runs/pile --policy policy.yaml
    """
    from pipeline.engine.progress import Progress
    from pipeline.stories.clean import SCREEN, ScreeningOptions, screen_settings
    from pipeline.stories.preparation import prepare
    from pipeline.stories.run import run_preparation

    if out is None:
        return _another_policy(files or [], policy, as_json)
    lists = ScreeningOptions(registry or (), policy, origins or (), optout or (), text_key)
    loaded = screen_settings(config, files or (), lists, tuple(set_ or ()))
    if dry_run:
        return show_run_plan(prepare(loaded, out), as_json, SCREEN)
    manifest = run_preparation(
        loaded,
        out,
        workers,
        cluster=options.read_cluster(cluster),
        progress=Progress(as_json=as_json),
        story=SCREEN,
    )
    return show_decisions(manifest, as_json)


register = commands(clean, screen, no_args_is_help=True)


def _another_policy(runs: list[str], policy: str | None, as_json: bool) -> None:
    """What the policy would decide otherwise on a run. Raises ConfigError for anything else."""
    from pipeline.commands.policy import show_difference
    from pipeline.screening.policy.difference import compare_policies
    from pipeline.screening.policy.rules import find_policy, load_policy, read_policy

    if len(runs) != 1 or policy is None:
        raise ConfigError(
            "--out: missing; give it, or give one finished run directory and --policy"
        )
    directory = open_place(Path(runs[0]))
    changed = load_policy(find_policy(policy))
    show_difference(compare_policies(directory, read_policy(directory), changed), as_json)


def show_decisions(manifest: "Manifest", as_json: bool) -> None:
    """A finished screening."""
    directory = manifest.directory
    decided = _counts(directory / layout.DOCUMENTS, ["decision", "rule"])
    findings = _counts(directory / layout.EVIDENCE, ["detector", "kind"])
    if as_json:
        return print_json(
            {
                "directory": str(directory),
                "reused": list(manifest.reused),
                "decisions": decided,
                "evidence": findings,
            }
        )
    _print("documents by decision", ("decision", "rule", ">documents"), decided)
    _print("evidence", ("detector", "kind", ">rows"), findings)
    return print_line(
        f"outputs: {directory}/  ({layout.EVIDENCE}, {layout.DECISIONS}, {layout.DOCUMENTS}); "
        "`prep explain` shows one document"
    )


def _counts(table: Path, columns: list[str]) -> list[dict[str, object]]:
    """Rows by the values of these columns, the largest count first."""
    from pipeline.runs.parts import RowGroups, group_parts

    parts = RowGroups(table).parts(columns)
    grouped = group_parts(parts, columns, {"count": ("", "count_all")})
    order = [("count", "descending"), *((name, "ascending") for name in columns)]
    return list(grouped.sort_by(order).to_pylist())


def _print(title: str, columns: tuple[str, ...], rows: list[dict[str, object]]) -> None:
    if not rows:
        print_line(f"{title}: none")
    cells = ((*(row[name] or "-" for name in columns[:-1]), f"{row['count']:,}") for row in rows)
    show_table(columns, cells, title=title)
