"""Croissant 1.1 with the RAI vocabulary 1.0: JSON-LD that describes the files of a run.

Names of RAI properties are those of the specification, `dataManipulationProtocol` and
`dataCollectionTimeframe`, where the constants of mlcroissant 1.1.1 differ. HDF5 shards are named
with their hashes; what can be loaded are the parquet tables: one record set for the lineage of each
split and one for documents.parquet. Paths are relative to the root of the data set, so
croissant.json belongs beside hdf5/. A date or address that nobody gave is left out, as the types of
the vocabulary take no words; the description then says what is missing.
"""

from typing import Any

from pipeline.core.words import pluralise
from pipeline.hdf5.format import CORPUS, LINEAGE_SUFFIX
from pipeline.provenance import wording
from pipeline.provenance.disclosure.about import SourceKind
from pipeline.provenance.disclosure.audit import limits
from pipeline.provenance.disclosure.california import describe_processing
from pipeline.provenance.disclosure.disclosure import Disclosure
from pipeline.provenance.disclosure.facts import SplitFacts
from pipeline.provenance.lineage import CORPUS_SCHEMA, SCHEMA

__all__ = ["CONFORMS_TO", "croissant"]

CONFORMS_TO = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")

_TYPES = {
    "int32": "cr:Int32", "int64": "cr:Int64", "uint32": "cr:UInt32", "uint64": "cr:UInt64",
    "string": "sc:Text",
}  # fmt: skip
_DOCUMENT_FIELDS = (
    ("source", "string", "source label of the record"),
    ("path_id", "uint32", "row of sources.parquet: the file"),
    ("line", "uint64", "1-based line of the file"),
    ("byte_offset", "uint64", "of the record in the decompressed file"),
    ("licence", "string", "licence statement of the record"),
    ("text_bytes", "uint64", "bytes of the text"),
    ("state", "string", "kept, duplicate, quarantined, dropped or bad_record"),
    ("reason", "string", "why the record left"),
    ("decision", "string", "decision of the policy"),
    ("rule", "string", "the rule behind the decision"),
    ("split", "string", "split of the data set"),
    ("tokens", "uint32", "tokens with the end-of-text token"),
)
_LINEAGE_WORDS = {
    "row": "row of the HDF5 shard",
    "token_start": "first token of the span",
    "token_end": "end of the span: one after its last token",
    "doc": "row of documents.parquet",
    "doc_token_start": "where the span starts in the document's tokens",
    "stream_row": "row of the split's stream before the shuffle of rows",
}
_COLLECTION: dict[SourceKind, str] = {
    "public": "Secondary Data analysis", "licensed": "Secondary Data analysis",
    "private": "Secondary Data analysis", "crawled": "Web Scraping",
    "user": "User-generated content data", "synthetic": "Others", "other": "Others",
}  # fmt: skip


def croissant(disclosure: Disclosure) -> dict[str, Any]:
    """The JSON-LD document as plain data; a pure function of `disclosure`."""
    document = {
        "@context": _context(),
        "@type": "sc:Dataset",
        "conformsTo": list(CONFORMS_TO),
        "name": disclosure.name,
        "description": _description(disclosure),
        "license": _licence(disclosure),
        "creator": _creators(disclosure),
        "citeAs": disclosure.said("citation").text,
        "keywords": ["text", "pre-training", *disclosure.about.task_categories],
        "isLiveDataset": False,
        **_given(disclosure),
        **_provenance(disclosure),
        **_responsible(disclosure),
        "distribution": _distribution(disclosure),
        "recordSet": _record_sets(disclosure),
    }
    return document


def _context() -> dict[str, Any]:
    """The JSON-LD context of Croissant 1.1, with PROV-O."""
    plain = ("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract",
             "field", "fileProperty", "fileObject", "fileSet", "format", "includes", "isArray",
             "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet",
             "references", "regex", "repeated", "replace", "samplingRate", "separator", "source",
             "subField", "transform")  # fmt: skip
    return {
        "@language": "en",
        "@vocab": "https://schema.org/",
        **{name: f"cr:{name}" for name in plain},
        "conformsTo": "dct:conformsTo",
        "cr": "http://mlcommons.org/croissant/",
        "rai": "http://mlcommons.org/croissant/RAI/",
        "prov": "http://www.w3.org/ns/prov#",
        "data": {"@id": "cr:data", "@type": "@json"},
        "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
        "dct": "http://purl.org/dc/terms/",
        "description": {"@container": "@language"},
        "examples": {"@id": "cr:examples", "@type": "@json"},
        "name": {"@container": "@language"},
        "sc": "https://schema.org/",
    }


def _description(d: Disclosure) -> str:
    missing = [d.said(key).text for key in ("url", "dates.published", "version")
               if d.said(key).basis == "todo"]  # fmt: skip
    return " ".join([d.said("description").text, *missing])


def _licence(d: Disclosure) -> list[str]:
    """The licence of the data set, then the statements of its documents."""
    own = d.about.licence.link or d.said("licence.expression").text
    statements = [one.statement for one in d.facts.licences if one.statement]
    return [own, *(f"stated by documents: {statement}" for statement in statements[:50])]


def _creators(d: Disclosure) -> list[dict[str, str]]:
    if not d.about.creators:
        return [{"@type": "sc:Organization", "name": d.said("creators").text}]
    kinds = {"organisation": "sc:Organization", "person": "sc:Person"}
    return [
        {"@type": kinds[one.kind], "name": one.name, **({"url": one.url} if one.url else {})}
        for one in d.about.creators
    ]


def _given(d: Disclosure) -> dict[str, Any]:
    """Properties whose types take no words: there only when about.yaml has them."""
    about = d.about
    values = {
        "url": about.url,
        "datePublished": about.dates.published,
        "dateCreated": about.dates.built,
        "version": about.version,
        "inLanguage": list(about.languages),
        "rai:dataCollectionTimeframe": [
            date for date in (about.dates.collected_from, about.dates.collected_to) if date
        ],
    }
    return {key: value for key, value in values.items() if value}


def _provenance(d: Disclosure) -> dict[str, Any]:
    sources = [name for s in d.about.sources.values() if (name := s.link or s.name)]
    derived = [{"@id": f"urn:xxh3-128:{i.hash}", "prov:label": i.name} for i in d.facts.inputs]
    named = [{"@type": "prov:Entity", "prov:label": source} for source in sorted(set(sources))]
    identity = d.facts.identity
    return {
        "prov:wasDerivedFrom": [*derived, *named],
        "prov:wasGeneratedBy": {
            "@type": "prov:Activity",
            "prov:label": f"wafermill {identity.toolkit} run {identity.run}",
        },
    }


def _responsible(d: Disclosure) -> dict[str, Any]:
    facts = d.facts
    kinds = sorted({_COLLECTION[source.kind] for source in d.about.sources.values()})
    inputs = "; ".join(
        f"{i.name}: {pluralise(i.files, 'file')}, {pluralise(i.bytes, 'byte')}, hash {i.hash}"
        for i in facts.inputs
    )
    rules = "; ".join(f"{r.rule}: {r.decision} {r.documents:,}" for r in facts.decisions)
    return {
        "rai:dataCollection": d.said("collection").text,
        "rai:dataCollectionType": kinds or ["TODO(sources: kind of each source label)"],
        "rai:dataCollectionRawData": inputs,
        "rai:dataPreprocessingProtocol": [describe_processing(facts)],
        "rai:dataManipulationProtocol": f"decisions by rule: {rules or 'no rule matched'}",
        "rai:dataReleaseMaintenancePlan": " ".join(
            [d.said("maintenance").text, "Requests:", d.said("claims.contact").text]
        ),
        "rai:personalSensitiveInformation": [d.said("personal_information").text],
        "rai:dataBiases": [d.said("biases").text],
        "rai:dataLimitations": [*limits(facts), *wording.FLOOR, d.said("limitations").text],
        "rai:dataUseCases": [d.said("purposes").text],
        "rai:dataSocialImpact": d.said("social_impact").text,
    }


def _distribution(d: Disclosure) -> list[dict[str, Any]]:
    files = [
        {
            "@type": "cr:FileObject",
            "@id": file.path,
            "name": file.path,
            "contentUrl": file.path,
            "contentSize": f"{file.size} B",
            "encodingFormat": file.media,
            "sha256": file.sha256,
        }
        for file in d.files
    ]
    sets = [
        {
            "@type": "cr:FileSet",
            "@id": f"lineage-files-{split.name}",
            "name": f"lineage-files-{split.name}",
            "encodingFormat": "application/x-parquet",
            "includes": f"hdf5/{split.name}/*{LINEAGE_SUFFIX}",
        }
        for split in d.facts.splits
    ]
    return [*files, *sets]


def _record_sets(d: Disclosure) -> list[dict[str, Any]]:
    documents = _record_set(
        "documents", "One row per record that was read.",
        {"fileObject": {"@id": "documents.parquet"}}, _DOCUMENT_FIELDS,
    )  # fmt: skip
    return [documents, *(_lineage(split) for split in d.facts.splits)]


def _lineage(split: SplitFacts) -> dict[str, Any]:
    schema = CORPUS_SCHEMA if split.format == CORPUS.name else SCHEMA
    fields = tuple((f.name, str(f.type), _LINEAGE_WORDS[f.name]) for f in schema)
    return _record_set(
        f"lineage-{split.name}", f"The document that each span of tokens of {split.name} is from.",
        {"fileSet": {"@id": f"lineage-files-{split.name}"}}, fields,
    )  # fmt: skip


def _record_set(
    name: str, description: str, source: dict[str, Any], fields: tuple[tuple[str, str, str], ...]
) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": description,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{name}/{column}",
                "name": column,
                "description": words,
                "dataType": _TYPES[kind],
                "source": {**source, "extract": {"column": column}},
            }
            for column, kind, words in fields
        ],
    }
