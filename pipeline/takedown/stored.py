"""Published files scrubbed in place, so that a kill at any instant leaves work that can go on.

A stage's manifest is written first, with the size and hash that its files will have; then the
files. A file that still has its old bytes is then known: scrubbing it gives the hash that the
manifest names. Content hashes stay those of what the stage made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from pipeline import layout
from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard, StageManifest, read_manifest, write_manifest
from pipeline.runner import STAGE_MANIFESTS
from pipeline.takedown.scrub import (
    Scrub,
    scrub_decisions,
    scrub_documents,
    scrub_drops,
    scrub_evidence,
    scrub_tokens,
)

STORES: Mapping[str, Scrub] = {
    "documents": scrub_documents,
    "quarantine": scrub_documents,
    "drops": scrub_drops,
    "tokens": scrub_tokens,
    layout.EVIDENCE: scrub_evidence,
    layout.DECISIONS: scrub_decisions,
}
"""Directory, or file at the top of a run -> how it is scrubbed."""


@dataclass(frozen=True)
class Scrubbing:
    """One sweep over a run's files: the run, what to call it in manifests, and whose text goes."""

    directory: Path
    name: str
    keys: pa.Array

    def run(self, stores: Mapping[str, Scrub]) -> None:
        """Scrub all files of all stages that stand in these stores; files that were deleted before
        are passed over. Raises IntegrityError for one that is neither as it was nor as it is to
        be."""
        for path in sorted((self.directory / STAGE_MANIFESTS).glob("*.json")):
            self._stage(path, stores)

    def _stage(self, path: Path, stores: Mapping[str, Scrub]) -> None:
        manifest = read_manifest(path)
        assert manifest is not None, "it was just listed"
        marked = self._marked(manifest, stores)
        if marked != manifest:
            write_manifest(path, marked)
        for shard, scrub in _chosen(marked, stores):
            if self.name in shard.scrubbed:
                self._publish(shard, scrub)

    def _marked(self, manifest: StageManifest, stores: Mapping[str, Scrub]) -> StageManifest:
        """The manifest as it will be."""
        changed = {
            shard.path: new
            for shard, scrub in _chosen(manifest, stores)
            if self.name not in shard.scrubbed and (new := self._future(shard, scrub))
        }
        return with_shards(manifest, changed)

    def _future(self, shard: Shard, scrub: Scrub) -> Shard | None:
        path = self.directory / shard.path
        if not path.exists():
            return None
        data = scrub(path, self.keys)
        if data is None:
            return None
        storage.verify_file(path, shard.hash)
        scrubbed = (*shard.scrubbed, self.name)
        return replace(shard, size=len(data), hash=storage.hash_bytes(data), scrubbed=scrubbed)

    def _publish(self, shard: Shard, scrub: Scrub) -> None:
        path = self.directory / shard.path
        if not path.exists() or storage.hash_file(path) == shard.hash:
            return
        data = scrub(path, self.keys) or b""
        if storage.hash_bytes(data) != shard.hash:
            raise IntegrityError(
                f"{path}: damaged: its content is neither the one before {self.name} nor the one "
                "after; put it back from a copy, or delete it and run the takedown again"
            )
        storage.publish(path, data)


def with_shards(manifest: StageManifest, changed: Mapping[str, Shard]) -> StageManifest:
    """The manifest with other shards in the place of those at these paths."""
    tasks = tuple(
        replace(task, shards=tuple(changed.get(s.path, s) for s in task.shards))
        for task in manifest.tasks
    )
    return replace(manifest, tasks=tasks)


def _chosen(manifest: StageManifest, stores: Mapping[str, Scrub]) -> Iterator[tuple[Shard, Scrub]]:
    for shard in manifest.shards:
        scrub = stores.get(shard.path.partition("/")[0])
        if scrub is not None:
            yield shard, scrub
