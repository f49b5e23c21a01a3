"""`prep clean`: its options, one call, and what it prints: what stayed of every source, and why the
rest left.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands import options
from pipeline.commands.run import print_outputs, print_sources, read_summary, show_run_plan
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.runs import layout
from pipeline.runs.views import CleanOutput

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
        progress=Progress(),
        story=story,
    )
    return show_clean_run(manifest, as_json)


register = commands(clean)


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
