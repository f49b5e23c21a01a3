"""The files of a run described in JSON-LD: Croissant 1.1 with the RAI vocabulary 1.0, and SPDX
3.0.1 with the dataset profile.

Croissant: names of RAI properties are those of the specification, `dataManipulationProtocol` and
`dataCollectionTimeframe`, where the constants of mlcroissant 1.1.1 differ. HDF5 shards are named
with their hashes; what can be loaded are the parquet tables: one record set for the lineage of each
split and one for documents.parquet. Paths are relative to the root of the data set, so
croissant.json belongs next to hdf5/. A date or address that nobody gave is left out, as the types
of the vocabulary take no words; the description then says what is missing.

SPDX: one `dataset_DatasetPackage` and its files. The profile requires dates, a download location
and an originator; what about.yaml does not say becomes a TODO in their place, and the document
validates once it is filled in. Identifiers come from the run, so the same run gives the same
document.
"""

import json
import re
from importlib import resources
from typing import Any

from pipeline.core.words import pluralise
from pipeline.disclosure.about import SourceKind
from pipeline.disclosure.audit import limits
from pipeline.disclosure.california import describe_processing
from pipeline.disclosure.disclosure import Disclosure
from pipeline.disclosure.facts import SplitFacts
from pipeline.hdf5.format import CORPUS, LINEAGE_SUFFIX
from pipeline.lineage.tables import CORPUS_SCHEMA, SCHEMA
from pipeline.report import page

CONFORMS_TO = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")

_TYPES = {
    "int32": "cr:Int32",
    "int64": "cr:Int64",
    "uint32": "cr:UInt32",
    "uint64": "cr:UInt64",
    "string": "sc:Text",
}
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
_TABLE = "documents-files"
_COLLECTION: dict[SourceKind, str] = {
    "public": "Secondary Data analysis",
    "licensed": "Secondary Data analysis",
    "private": "Secondary Data analysis",
    "crawled": "Web Scraping",
    "user": "User-generated content data",
    "synthetic": "Others",
    "other": "Others",
}


def croissant(disclosure: Disclosure) -> dict[str, Any]:
    """The JSON-LD document as plain data; a pure function of `disclosure`."""
    return {
        "@context": _read_context(),
        "@type": "sc:Dataset",
        "conformsTo": list(CONFORMS_TO),
        "name": disclosure.name,
        "description": _describe(disclosure),
        "license": _list_licences(disclosure),
        "creator": _list_creators(disclosure),
        "citeAs": disclosure.find_answer("citation").text,
        "keywords": ["text", "pre-training", *disclosure.about.task_categories],
        "isLiveDataset": False,
        **_list_given(disclosure),
        **_describe_provenance(disclosure),
        **_answer_rai(disclosure),
        "distribution": _list_files(disclosure),
        "recordSet": _list_record_sets(disclosure),
    }


def _read_context() -> dict[str, Any]:
    """The JSON-LD context of Croissant 1.1, with PROV-O."""
    file = resources.files("pipeline.disclosure").joinpath("croissant_context.json")
    return dict(json.loads(file.read_bytes()))


def _describe(d: Disclosure) -> str:
    missing = [
        d.find_answer(key).text
        for key in ("url", "dates.published", "version")
        if d.find_answer(key).basis == "todo"
    ]
    return " ".join([d.find_answer("description").text, *missing])


def _list_licences(d: Disclosure) -> list[str]:
    """The licence of the data set, then the statements of its documents."""
    own = d.about.licence.link or d.find_answer("licence.expression").text
    statements = [one.statement for one in d.facts.licences if one.statement]
    return [own, *(f"stated by documents: {statement}" for statement in statements[:50])]


def _list_creators(d: Disclosure) -> list[dict[str, str]]:
    if not d.about.creators:
        return [{"@type": "sc:Organization", "name": d.find_answer("creators").text}]
    kinds = {"organisation": "sc:Organization", "person": "sc:Person"}
    return [
        {"@type": kinds[one.kind], "name": one.name, **({"url": one.url} if one.url else {})}
        for one in d.about.creators
    ]


def _list_given(d: Disclosure) -> dict[str, Any]:
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


def _describe_provenance(d: Disclosure) -> dict[str, Any]:
    sources = [name for s in d.about.sources.values() if (name := s.link or s.name)]
    derived = [{"@id": f"urn:xxh3-128:{i.hash}", "prov:label": i.name} for i in d.facts.inputs]
    entities = [{"@type": "prov:Entity", "prov:label": source} for source in sorted(set(sources))]
    identity = d.facts.identity
    return {
        "prov:wasDerivedFrom": [*derived, *entities],
        "prov:wasGeneratedBy": {
            "@type": "prov:Activity",
            "prov:label": f"wafermill {identity.toolkit} run {identity.run}",
        },
    }


def _answer_rai(d: Disclosure) -> dict[str, Any]:
    facts = d.facts
    kinds = sorted({_COLLECTION[source.kind] for source in d.about.sources.values()})
    inputs = "; ".join(
        f"{i.name}: {pluralise(i.files, 'file')}, {pluralise(i.bytes, 'byte')}, hash {i.hash}"
        for i in facts.inputs
    )
    rules = "; ".join(f"{r.rule}: {r.decision} {r.documents:,}" for r in facts.decisions)
    return {
        "rai:dataCollection": d.find_answer("collection").text,
        "rai:dataCollectionType": kinds or ["TODO(sources: kind of each source label)"],
        "rai:dataCollectionRawData": inputs,
        "rai:dataPreprocessingProtocol": [describe_processing(facts)],
        "rai:dataManipulationProtocol": f"decisions by rule: {rules or 'no rule matched'}",
        "rai:dataReleaseMaintenancePlan": " ".join(
            [d.find_answer("maintenance").text, "Requests:", d.find_answer("claims.contact").text]
        ),
        "rai:personalSensitiveInformation": [d.find_answer("personal_information").text],
        "rai:dataBiases": [d.find_answer("biases").text],
        "rai:dataLimitations": [*limits(facts), *page.FLOOR, d.find_answer("limitations").text],
        "rai:dataUseCases": [d.find_answer("purposes").text],
        "rai:dataSocialImpact": d.find_answer("social_impact").text,
    }


def _list_files(d: Disclosure) -> list[dict[str, Any]]:
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
        _make_file_set(
            f"lineage-files-{split.name}",
            d.facts.name_files(f"hdf5/{split.name}/*{LINEAGE_SUFFIX}"),
        )
        for split in d.facts.splits
    ]
    return [*files, _make_file_set(_TABLE, d.facts.name_files(d.facts.table)), *sets]


def _make_file_set(name: str, includes: str | list[str]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "encodingFormat": "application/x-parquet",
        "includes": includes,
    }


def _list_record_sets(d: Disclosure) -> list[dict[str, Any]]:
    documents = _make_record_set(
        "documents",
        "One row per record that was read.",
        {"fileSet": {"@id": _TABLE}},
        _DOCUMENT_FIELDS,
    )
    return [documents, *(_make_lineage_set(split) for split in d.facts.splits)]


def _make_lineage_set(split: SplitFacts) -> dict[str, Any]:
    schema = CORPUS_SCHEMA if split.format == CORPUS.name else SCHEMA
    fields = tuple((f.name, str(f.type), _LINEAGE_WORDS[f.name]) for f in schema)
    return _make_record_set(
        f"lineage-{split.name}",
        f"The document that each span of tokens of {split.name} is from.",
        {"fileSet": {"@id": f"lineage-files-{split.name}"}},
        fields,
    )


def _make_record_set(
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


CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
_CREATION = "_:creation"
_PRESENCE = {"yes": "yes", "no": "no", "unknown": "noAssertion"}


def spdx(disclosure: Disclosure) -> dict[str, Any]:
    """The JSON-LD document as plain data; a pure function of `disclosure`."""
    d = disclosure
    base = f"urn:wafermill:{d.facts.identity.run}:"

    def element(kind: str, place: str, /, **values: Any) -> dict[str, Any]:
        return {"type": kind, "spdxId": base + place, "creationInfo": _CREATION, **values}

    def relate(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
        related = {"from": package["spdxId"], "to": [one["spdxId"] for one in objects]}
        return element("Relationship", kind, relationshipType=kind, **related)

    kinds = {"organisation": "Organization", "person": "Person"}
    names = [(kinds[one.kind], one.name) for one in d.about.creators]
    names = names or [("Organization", d.find_answer("creators").text)]
    agents = [
        element(kind, f"agent-{number}", name=name) for number, (kind, name) in enumerate(names)
    ]
    creators = [agent["spdxId"] for agent in agents]
    tool = element("Tool", "tool", name=f"wafermill {d.facts.identity.toolkit}")
    package = element("dataset_DatasetPackage", "data-set", **_describe_package(d, creators))
    files = [
        element(
            "software_File",
            f"file:{re.sub(r'[^A-Za-z0-9._/-]', '_', file.path)}",
            name=file.path,
            software_primaryPurpose="data",
            contentType=file.media,
            verifiedUsing=[{"type": "Hash", "algorithm": "sha256", "hashValue": file.sha256}],
        )
        for file in d.files
    ]
    licence = element("simplelicensing_LicenseExpression", "licence", **_state_licence(d))
    relations = [relate("contains", files)] if files else []
    relations.append(relate("hasDeclaredLicense", [licence]))
    elements = [*agents, tool, package, *files, licence, *relations]
    document = element(
        "SpdxDocument",
        "document",
        name=d.name,
        rootElement=[package["spdxId"]],
        element=[element["spdxId"] for element in elements],
        profileConformance=["core", "dataset", "simpleLicensing", "software"],
    )
    creation = {
        "type": "CreationInfo",
        "@id": _CREATION,
        "specVersion": "3.0.1",
        "created": _format_moment(d, "dates.built"),
        "createdBy": creators,
        "createdUsing": [tool["spdxId"]],
    }
    return {"@context": CONTEXT, "@graph": [creation, document, *elements]}


def _format_moment(d: Disclosure, key: str) -> str:
    """A date of about.yaml as the moment its first day begins, or the TODO."""
    date = d.find_answer(key)
    if date.basis == "todo":
        return date.text
    return f"{(date.text + '-01-01')[:10]}T00:00:00Z"


def _describe_package(d: Disclosure, creators: list[str]) -> dict[str, Any]:
    about, facts = d.about, d.facts
    package = {
        "name": d.name,
        "description": d.find_answer("description").text,
        "builtTime": _format_moment(d, "dates.built"),
        "releaseTime": _format_moment(d, "dates.published"),
        "originatedBy": creators,
        "software_primaryPurpose": "data",
        "software_packageVersion": about.version or facts.identity.run,
        "software_downloadLocation": d.find_answer("url").text,
        "dataset_datasetType": ["text"],
        "dataset_datasetSize": facts.bytes_kept,
        "dataset_dataCollectionProcess": d.find_answer("collection").text,
        "dataset_dataPreprocessing": describe_processing(facts).split("; "),
        "dataset_intendedUse": d.find_answer("purposes").text,
        "dataset_knownBias": [d.find_answer("biases").text],
        "dataset_datasetUpdateMechanism": d.find_answer("maintenance").text,
    }
    if about.sensitive_information:
        presence = _PRESENCE[about.sensitive_information]
        package["dataset_hasSensitivePersonalInformation"] = presence
    return package


def _state_licence(d: Disclosure) -> dict[str, str]:
    answer = d.find_answer("licence.expression")
    if answer.basis == "about":
        return {"simplelicensing_licenseExpression": answer.text}
    return {"simplelicensing_licenseExpression": "NOASSERTION", "comment": answer.text}
