"""`prep repack` and `prep rescan`, which work on a finished run: its tokens packed again, its
documents screened again. Options, one call each, printed results.
"""

import json
from pathlib import Path

from pipeline.commands import options
from pipeline.commands.run import describe_split
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core.words import format_bytes, format_duration, pluralise


def repack(
    directory: options.FinishedRunArgument,
    out: options.Place,
    msl: int | None = None,
    format_: str | None = None,
    packer: str | None = None,
    seed: int | None = None,
    shard_bytes: str | None = None,
    shard_sequences: int | None = None,
    compression: str | None = None,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Pack the tokens of a run again with other settings; nothing is tokenized, splits stay.

    The result is a run directory of its own, with lineage: `prep verify`, `prep trace` and `train
    --data` work on it. Finished work is reused; the same command resumes an interrupted run.

    --out DIR: run directory of the result
    --msl N: tokens in one row [default: as in RUN]
    --format NAME: sample, vsl or corpus [default: as in RUN]
    --packer NAME: packer of vsl: first_fit or greedy
    --seed S: seed of the shuffle [default: as in RUN]
    --shard-bytes SIZE: bytes of rows in one shard, such as 128MiB
    --shard-sequences N: rows in one shard
    --compression NAME: gzip or none [default: as in RUN]

    Examples:
    prep repack runs/pile --out runs/pile-8k --msl 8192
    prep repack runs/pile --out runs/pile-vsl --format vsl --packer first_fit
    prep repack runs/pile --out runs/pile-corpus --format corpus --compression none
    """
    from pipeline.config.yaml import loads_value
    from pipeline.engine.progress import Progress
    from pipeline.stories.repack import RepackOptions, repack_run

    size = None if shard_bytes is None else loads_value(shard_bytes)
    changes = RepackOptions(
        max_sequence_length=msl,
        format=format_,
        packer=packer,
        seed=seed,
        shard_bytes=size,
        shard_sequences=shard_sequences,
        compression=compression,
    )
    manifest = repack_run(
        directory, out, changes, workers, cluster=options.read_cluster(cluster), progress=Progress()
    )
    ledger = json.loads((manifest.directory / "ledger.json").read_bytes())
    if as_json:
        summary = {"directory": str(manifest.directory), "reused": list(manifest.reused)}
        return print_json({**summary, "splits": ledger["splits"]})
    for name, split in ledger["splits"].items():
        print_line(describe_split(name, split))
    return print_line(f"outputs: {manifest.directory}/hdf5/")


def rescan(
    directory: options.FinishedRunArgument,
    registry: list[Path],
    policy: str = "builtin:default",
    name: str = "",
    estimate: bool = False,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Search the documents of a finished run for works that were registered later.

    The run is not changed; `prep trace` and `prep takedown` use what is found. A match is a text
    overlap or a resemblance, not a finding about permission. No match is not evidence of absence.

    --registry DIR: a registry of works, repeatable
    --policy FILE: the policy that says what would follow, or builtin:default
    --name NAME: results go to RUN/rescans/NAME [default: name of the registry]
    --estimate/--no-estimate: show the expected cost and stop

    Examples:
    prep rescan runs/pile --registry claims/ --estimate
    prep rescan runs/pile --registry claims/ --workers 8
    Then `prep trace runs/pile --work ID --train out` and `prep takedown` use what was found.
    """
    from pipeline.engine.progress import Progress
    from pipeline.stories.rescan import list_matched_works, plan_rescan
    from pipeline.stories.rescan import rescan_run as look_through

    request = plan_rescan(directory, registry, policy, name)
    cost = {
        "bytes": request.bytes,
        "cpu_seconds": round(request.cpu_seconds, 1),
        "works": len(request.registry.works),
    }
    if estimate and as_json:
        return print_json({"directory": str(request.out), **cost})
    if not as_json:
        against = pluralise(len(request.registry.works), "work")
        print_line(
            f"{format_bytes(request.bytes)} of text against {against}: "
            f"about {format_duration(request.cpu_seconds)} of one core"
        )
    if estimate:
        return None
    look_through(request, workers, cluster=options.read_cluster(cluster), progress=Progress())
    works = list_matched_works(request)
    if as_json:
        matches = [vars(work) for work in works]
        return print_json({"directory": str(request.out), **cost, "matched": matches})
    rows = []
    for work in works:
        numbers = (f"{n:,}" for n in (work.documents, work.kept, work.tokens))
        rows.append((work.work_id, work.title, ", ".join(work.detectors), *numbers))
    show_table(("work", "title", "found by", ">documents", ">kept", ">tokens"), rows)
    return print_line(f"{pluralise(len(works), 'work')} matched; {request.out}/evidence.parquet")


register = commands(repack, rescan)
