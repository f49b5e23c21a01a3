"""SPDX 3.0.1: the model of the specification reads it, and every file has its hash."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.disclosure.disclosure import Disclosure
from pipeline.disclosure.json_ld import CONTEXT, spdx

from .conftest import RichRun


def by_type(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [element for element in document["@graph"] if element["type"] == kind]


def test_the_model_of_the_specification_takes_it(rich_run: RichRun) -> None:
    """Types, enumerations, cardinalities and references, by the bindings made from the ontology."""
    model = pytest.importorskip("spdx_python_model").v3_0_1
    objects = model.SHACLObjectSet()
    data = json.dumps(spdx(rich_run.disclosure())).encode()
    model.JSONLDDeserializer().read(io.BytesIO(data), objects)
    model.JSONLDSerializer().write(objects, io.BytesIO())
    assert objects.missing_ids == set()


def test_the_package_has_what_the_profile_requires(rich_run: RichRun) -> None:
    disclosure = rich_run.disclosure()
    document = spdx(disclosure)
    assert document["@context"] == CONTEXT
    (package,) = by_type(document, "dataset_DatasetPackage")
    assert package["dataset_datasetType"] == ["text"]
    assert package["builtTime"] == "2026-03-01T00:00:00Z"
    assert package["releaseTime"] == "2026-04-01T00:00:00Z"
    assert len(package["originatedBy"]) == 2
    files = by_type(document, "software_File")
    assert {f["name"]: f["verifiedUsing"][0]["hashValue"] for f in files} == {
        file.path: file.sha256 for file in disclosure.files
    }
    ids = [element.get("spdxId") for element in document["@graph"][1:]]
    assert len(set(ids)) == len(ids)


def test_what_nobody_said_is_a_todo(plain_disclosure: Callable[..., Disclosure]) -> None:
    (package,) = by_type(spdx(plain_disclosure()), "dataset_DatasetPackage")
    for key in ("builtTime", "releaseTime", "software_downloadLocation", "dataset_intendedUse"):
        assert package[key].startswith("TODO("), key
    (licence,) = by_type(spdx(plain_disclosure()), "simplelicensing_LicenseExpression")
    assert licence["simplelicensing_licenseExpression"] == "NOASSERTION"
    assert licence["comment"].startswith("TODO(")
