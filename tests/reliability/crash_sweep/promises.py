"""What a run directory promises: records and manifests that name files."""

import contextlib
from collections import Counter
from pathlib import Path

import pyarrow as pa

from pipeline.core import manifest
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import verify_file
from pipeline.core.ids import table_hash
from pipeline.core.manifest import Shard, StageManifest


def broken_promises(root: Path, strict: bool = True, power_loss: bool = False) -> list[str]:
    """Readable records and manifests that name a file which is not there or not whole. After a
    power loss records promise nothing: what they name is durable once their stage commits.

    When a finished directory is rebuilt under another config the old stage manifests stand until
    they are replaced; only manifest.json, the commit of the run, promises anything then. A shard
    that is marked because its quarantined texts leave it may still have them, until the commit.
    What the journal notes as deleted is promised by no manifest of a stage.
    """
    found = []
    deleted: set[str] = set()
    with contextlib.suppress(IntegrityError):
        deleted |= set(manifest.read_sealed(root / "journal/removed.json")["removed"])
    committed: list[tuple[Path, list[tuple[str, str]]]] = []
    with contextlib.suppress(IntegrityError):
        top = manifest.read_sealed(root / "manifest.json")
        committed.append((root / "manifest.json", [(f["path"], f["hash"]) for f in top["files"]]))
    if strict:
        for path in root.glob("manifests/*.json"):
            with contextlib.suppress(IntegrityError):
                stage = manifest.read_manifest(path)
                assert isinstance(stage, StageManifest)
                there = [s for s in stage.shards if s.path.partition("/")[0] not in deleted]
                files = [(s.path, s.hash) for s in there if not _still_whole(root, s)]
                committed.append((path, files))
        for path in root.glob("journal/records/*/*.json"):
            record = manifest.read_record(path)
            if record is not None and not power_loss:
                committed.append((path, [(s.path, s.hash) for s in record.shards]))
    for path, files in committed:
        for name, digest in files:
            try:
                verify_file(root / name, digest)
            except IntegrityError as error:
                found.append(f"{path.relative_to(root)} promises {error}")
    return found


def _still_whole(root: Path, shard: Shard) -> bool:
    """Whether a marked shard has its texts yet: its content is what was read."""
    path = root / shard.path
    if not shard.is_apart or not path.exists():
        return False
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except pa.ArrowInvalid:
        return False
    return table_hash(table) == shard.content_hash


def committed_tasks(root: Path, power_loss: bool = False) -> Counter[str]:
    """Tasks that a readable manifest, or record, commits, counted by their fault point."""
    tasks: Counter[str] = Counter()
    for path in root.glob("journal/records/*/*.json"):
        if manifest.read_record(path) is not None and not power_loss:
            tasks[f"task.start.{path.parent.name}"] += 1
    for path in root.glob("manifests/*.json"):
        with contextlib.suppress(IntegrityError):
            stage = manifest.read_manifest(path)
            assert stage is not None
            tasks[f"task.start.{stage.stage}"] = len(stage.tasks)
    return tasks
