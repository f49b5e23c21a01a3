"""HTML pages of a run that show text of documents: written again without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pipeline import layout
from pipeline.core.manifest import read_manifest
from pipeline.runner import manifest_path
from pipeline.stage import Inputs
from pipeline.stages.report import report_stage

_NOTICE = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Withheld</title>
<p>This page showed text of documents that were taken down. `prep run` writes it again when it
writes the data set again.</p></html>
"""


@dataclass
class Pages:
    """The pages of a run, rendered from its tables as they are now. `order`: its stages in the
    order of the run; `name`: that of its config."""

    directory: Path
    name: str
    order: Sequence[str]
    _rendered: Mapping[str, bytes] = field(default_factory=dict)

    def scrub(self, path: Path, keys: pa.Array) -> bytes | None:
        """The page without these documents, or a notice where it cannot be rendered; None when it
        names none of them."""
        data = path.read_bytes()
        if not any(key.hex().encode() in data for key in keys.to_pylist()):
            return None
        if not self._rendered:
            self._rendered = self._render()
        return self._rendered.get(path.relative_to(self.directory).as_posix(), _NOTICE)

    def _render(self) -> dict[str, bytes]:
        report = read_manifest(manifest_path(self.directory, "report"))
        notes = report.fields["settings"].get("notes") if report else None
        if notes is None:
            return {layout.REPORT: _NOTICE}
        before = self.order[: self.order.index("report")]
        read = {stage: read_manifest(manifest_path(self.directory, stage)) for stage in before}
        manifests = {stage: manifest for stage, manifest in read.items() if manifest is not None}
        stage = report_stage(self.name, manifests, tuple(notes))
        result = stage.function(stage.tasks[0].job, Inputs(self.directory))
        return {
            output.path: output.data if isinstance(output.data, bytes) else b"".join(output.data)
            for output in result.outputs
        }
