"""SPDX 3.0.1 JSON-LD with the dataset profile: one `dataset_DatasetPackage` and its files.

The profile requires dates, a download location and an originator; what about.yaml does not say
stands as a TODO in their place, and the document validates once it is filled in. Identifiers come
from the run, so the same run gives the same document.
"""

import re
from typing import Any

from pipeline.provenance.disclosure.california import describe_processing
from pipeline.provenance.disclosure.disclosure import Disclosure
from pipeline.provenance.disclosure.files import PublishedFile

__all__ = ["CONTEXT", "spdx"]

CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
_CREATION = "_:creation"
_PRESENCE = {"yes": "yes", "no": "no", "unknown": "noAssertion"}


def spdx(disclosure: Disclosure) -> dict[str, Any]:
    """The JSON-LD document as plain data; a pure function of `disclosure`."""
    base = f"urn:wafermill:{disclosure.facts.identity.run}:"
    agents = _agents(disclosure, base)
    creators = [agent["spdxId"] for agent in agents if agent["type"] != "Tool"]
    files = [_file(file, base) for file in disclosure.files]
    package = _package(disclosure, base, creators)
    licence = _licence(disclosure, base)
    related = [
        _relation(base, "contains", package["spdxId"], [file["spdxId"] for file in files]),
        _relation(base, "hasDeclaredLicense", package["spdxId"], [licence["spdxId"]]),
    ]
    elements = [*agents, package, *files, licence, *(r for r in related if r["to"])]
    document = {
        "type": "SpdxDocument",
        "spdxId": f"{base}document",
        "creationInfo": _CREATION,
        "name": disclosure.name,
        "rootElement": [package["spdxId"]],
        "element": [element["spdxId"] for element in elements],
        "profileConformance": ["core", "dataset", "simpleLicensing", "software"],
    }
    return {
        "@context": CONTEXT,
        "@graph": [_creation(disclosure, base, creators), document, *elements],
    }


def _creation(d: Disclosure, base: str, creators: list[str]) -> dict[str, Any]:
    return {
        "type": "CreationInfo",
        "@id": _CREATION,
        "specVersion": "3.0.1",
        "created": _moment(d, "dates.built"),
        "createdBy": creators,
        "createdUsing": [f"{base}tool"],
    }


def _moment(d: Disclosure, key: str) -> str:
    """A date of about.yaml as the moment its first day begins, or the TODO."""
    date = d.said(key)
    if date.basis == "todo":
        return date.text
    return f"{(date.text + '-01-01')[:10] if len(date.text) < 10 else date.text}T00:00:00Z"


def _agents(d: Disclosure, base: str) -> list[dict[str, Any]]:
    """Who made the data set, or a TODO in their place, and the tool."""
    kinds = {"organisation": "Organization", "person": "Person"}
    named = [(kinds[one.kind], one.name) for one in d.about.creators]
    named = named or [("Organization", d.said("creators").text)]
    identity = d.facts.identity
    return [
        *(
            {"type": kind, "spdxId": f"{base}agent-{number}", "creationInfo": _CREATION,
             "name": name}
            for number, (kind, name) in enumerate(named)
        ),
        {"type": "Tool", "spdxId": f"{base}tool", "creationInfo": _CREATION,
         "name": f"wafermill {identity.toolkit}"},
    ]  # fmt: skip


def _package(d: Disclosure, base: str, creators: list[str]) -> dict[str, Any]:
    about, facts = d.about, d.facts
    package = {
        "type": "dataset_DatasetPackage",
        "spdxId": f"{base}data-set",
        "creationInfo": _CREATION,
        "name": d.name,
        "description": d.said("description").text,
        "builtTime": _moment(d, "dates.built"),
        "releaseTime": _moment(d, "dates.published"),
        "originatedBy": creators,
        "software_primaryPurpose": "data",
        "software_packageVersion": about.version or facts.identity.run,
        "software_downloadLocation": d.said("url").text,
        "dataset_datasetType": ["text"],
        "dataset_datasetSize": facts.bytes_kept,
        "dataset_dataCollectionProcess": d.said("collection").text,
        "dataset_dataPreprocessing": describe_processing(facts).split("; "),
        "dataset_intendedUse": d.said("purposes").text,
        "dataset_knownBias": [d.said("biases").text],
        "dataset_datasetUpdateMechanism": d.said("maintenance").text,
    }
    if about.sensitive_information:
        presence = _PRESENCE[about.sensitive_information]
        package["dataset_hasSensitivePersonalInformation"] = presence
    return package


def _licence(d: Disclosure, base: str) -> dict[str, Any]:
    given = d.said("licence.expression")
    expression = given.text if given.basis == "about" else "NOASSERTION"
    element = {
        "type": "simplelicensing_LicenseExpression",
        "spdxId": f"{base}licence",
        "creationInfo": _CREATION,
        "simplelicensing_licenseExpression": expression,
    }
    return element if given.basis == "about" else {**element, "comment": given.text}


def _file(file: PublishedFile, base: str) -> dict[str, Any]:
    return {
        "type": "software_File",
        "spdxId": f"{base}file:{re.sub(r'[^A-Za-z0-9._/-]', '_', file.path)}",
        "creationInfo": _CREATION,
        "name": file.path,
        "software_primaryPurpose": "data",
        "contentType": file.media,
        "verifiedUsing": [{"type": "Hash", "algorithm": "sha256", "hashValue": file.sha256}],
    }


def _relation(base: str, kind: str, subject: str, objects: list[str]) -> dict[str, Any]:
    return {
        "type": "Relationship",
        "spdxId": f"{base}{kind}",
        "creationInfo": _CREATION,
        "relationshipType": kind,
        "from": subject,
        "to": objects,
    }
