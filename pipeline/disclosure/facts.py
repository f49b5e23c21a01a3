"""The facts of a finished run as typed counts, which every document shares.

Nothing here holds a time, a host or an absolute path. Tables of runs made by earlier versions lack
columns; what they lack counts as not recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.ledger import Ledger
from pipeline.report.model import SourceRow


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The run by its names and hashes; `settings` are (stage, key, value) of the
    stages that screened it; their fingerprints cover lists, policy and registry."""

    config: str
    run: str
    toolkit: str
    software: tuple[tuple[str, str], ...]
    stages: tuple[tuple[str, str, str], ...]
    settings: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class InputFacts:
    """One input of the config: raw files, their bytes on disk and a hash over their hashes."""

    name: str
    files: int
    bytes: int
    skipped: int
    hash: str


@dataclass(frozen=True)
class LicenceFacts:
    """A licence statement of kept documents; empty for none."""

    statement: str
    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SourceFacts(SourceRow):
    """One source with the names of its inputs, and the licences of its kept documents."""

    inputs: tuple[str, ...] = ()
    licences: tuple[LicenceFacts, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DecisionFacts:
    """A rule with what it decided: documents, bytes of text, those that took it over from another
    document of their cluster, and the reason, empty when it differs from document to document.
    `quotes`: the reason repeats what a document or a registry says."""

    rule: str
    decision: str
    documents: int
    bytes: int
    propagated: int
    reason: str
    quotes: bool = False


@dataclass(frozen=True)
class Flow:
    """Documents of a source that a rule of the policy matched."""

    source: str
    rule: str
    decision: str
    documents: int


@dataclass(frozen=True)
class RemovalFacts:
    """Documents that left in one state for one reason."""

    state: str
    reason: str
    documents: int
    bytes: int


@dataclass(frozen=True)
class EvidenceFacts:
    """Rows of evidence of one kind, and the documents they are about."""

    detector: str
    kind: str
    rows: int
    documents: int


@dataclass(frozen=True)
class Passage:
    """A place where a work was seen: document key in hex, bytes of its cleaned text, what stands
    there, and what the detector measured."""

    document: str
    byte_offset: int
    byte_length: int
    seen: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class WorkFacts:
    """A work of a registry that evidence names. `title`, `authors`, `status` come from the registry
    of the run, empty without one."""

    work_id: str
    title: str
    authors: tuple[str, ...]
    status: str
    detectors: tuple[str, ...]
    rows: int
    documents: int
    decisions: tuple[tuple[str, int], ...]
    passages: tuple[Passage, ...]


@dataclass(frozen=True, kw_only=True)
class OptOutFacts:
    """An opt-out signal, as evidence has it, and the documents it covers by decision. `status` is
    reserved or allowed, `captured` the last time it was captured; empty where not recorded."""

    kind: str
    target: str
    signal: str
    status: str
    captured: str
    documents: int
    decisions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ClusterFacts:
    """Duplicate clusters, and those with a document that a rule matched."""

    clusters: int
    members: int
    affected: int
    affected_members: int
    propagated: int


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """One packed split; `covered` counts the tokens that lineage names a document for, `labels`
    those that are not padding, `lineage_bytes` what the lineage takes on disk."""

    name: str
    format: str
    documents: int
    rows: int
    tokens: int
    labels: int
    covered: int
    lineage_bytes: int
    shards: int
    max_sequence_length: int


@dataclass(frozen=True)
class HostFacts:
    """A host of the web that kept documents name in their metadata."""

    host: str
    documents: int
    bytes: int


@dataclass(frozen=True)
class ListFacts:
    """A list that documents were compared with: what of, its name and version, and its entries."""

    kind: str
    name: str
    version: str
    entries: int


@dataclass(frozen=True)
class RegistryFacts:
    """The works that documents were compared with, and the parameters of the index of their texts;
    `compared` counts the works with a text or sketch, `content_hash` is over all of them."""

    works: int
    compared: int
    content_hash: str
    statuses: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class EventFacts:
    """The event chain: number of events by kind, number and hash of the last one."""

    kinds: tuple[tuple[str, int], ...]
    number: int
    head: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the documents draw on."""

    identity: Identity
    ledger: Ledger
    inputs: tuple[InputFacts, ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    licences: tuple[LicenceFacts, ...] = ()
    removed: tuple[RemovalFacts, ...] = ()
    decisions: tuple[DecisionFacts, ...] = ()
    flows: tuple[Flow, ...] = ()
    evidence: tuple[EvidenceFacts, ...] = ()
    works: tuple[WorkFacts, ...] = ()
    optouts: tuple[OptOutFacts, ...] = ()
    clusters: ClusterFacts = ClusterFacts(0, 0, 0, 0, 0)
    splits: tuple[SplitFacts, ...] = ()
    hosts: tuple[HostFacts, ...] = ()
    lists: tuple[ListFacts, ...] = ()
    registry: RegistryFacts | None = None
    events: EventFacts | None = None
    table: str = ""
    """What names the files of documents.parquet, relative to the run."""
    places: tuple[str, ...] = ("",)
    """What is before the paths of each generation, relative to the run."""
    screened: tuple[tuple[str, int], ...] = ()
    """Documents that were screened, by decision; empty when none were."""

    def name_files(self, pattern: str) -> str | list[str]:
        """A pattern of files of the run; of several generations, that in each of them."""
        patterns = [place + pattern for place in self.places]
        return patterns if len(patterns) > 1 else patterns[0]

    @property
    def kept(self) -> int:
        """Documents kept."""
        return sum(source.kept for source in self.sources)

    @property
    def documents(self) -> int:
        """Records that could be decoded."""
        return sum(source.documents for source in self.sources)

    @property
    def tokens(self) -> int:
        """Tokens of the kept documents, with one EOS each."""
        return sum(source.tokens for source in self.sources)

    @property
    def matched(self) -> int:
        """Documents with a decision other than allow."""
        return sum(count for decision, count in self.screened if decision != "allow")

    @property
    def bytes_kept(self) -> int:
        """Bytes of text kept."""
        return sum(source.bytes_kept for source in self.sources)
