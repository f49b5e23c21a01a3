"""The dataset card: its header is the Hub's, its text is guarded."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from pipeline.disclosure.about import About, AboutSource, Licence
from pipeline.disclosure.card import dataset_card
from pipeline.disclosure.disclosure import Disclosure

from .conftest import RichRun

SECTIONS = ("Provenance", "Licences by tokens", "Screening performed and limits",
            "Quarantine counts by rule", "Takedown", "Datasheet", "Citation")  # fmt: skip


def header(card: str) -> dict[str, object]:
    found = re.match(r"---\n(.*?)\n---\n", card, re.S)
    assert found
    value = yaml.safe_load(found[1])
    assert isinstance(value, dict)
    return value


def test_the_header_is_what_the_hub_reads(rich_run: RichRun) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = dataset_card(rich_run.disclosure()).decode()
    data = hub.DatasetCard(card).data
    assert data.license == "cc-by-4.0"
    assert data.language == ["en", "de"]
    assert data.size_categories == ["n<1K"]
    assert data.task_categories == ["text-generation"]
    assert [config["config_name"] for config in data.configs] == ["lineage", "documents"]


def test_configs_name_files_that_are_there(rich_run: RichRun) -> None:
    value = header(dataset_card(rich_run.disclosure()).decode())
    configs = value["configs"]
    assert isinstance(configs, list)
    for config in configs:
        for file in config["data_files"]:
            assert list(rich_run.directory.glob(file["path"])), file


def test_sections_stand_in_order(rich_run: RichRun) -> None:
    card = dataset_card(rich_run.disclosure()).decode()
    assert tuple(re.findall(r"^## (.+)$", card, re.M)) == SECTIONS
    assert "TODO(" not in card
    quarantine = card.partition("## Quarantine")[2].partition("## ")[0]
    assert "| text-of-a-registered-work | 3 | 1 |" in quarantine


def test_what_nobody_said_is_a_todo(plain_disclosure: Callable[..., Disclosure]) -> None:
    card = dataset_card(plain_disclosure()).decode()
    assert header(card)["license"] == "unknown"
    head = card.split("---")[1]
    assert "# TODO(licence.expression: " in head
    assert "# TODO(languages: " in head
    assert "Requests: TODO(claims.contact: " in card
    assert "language" not in header(card)


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        (Licence(expression="MIT"), {"license": "mit"}),
        (Licence(expression="ODC-By-1.0"), {"license": "odc-by"}),
        (
            Licence(expression="LicenseRef-own", name="Our Own Licence", link="https://example.org"),
            {"license": "other", "license_name": "our-own-licence",
             "license_link": "https://example.org"},
        ),
    ],
)  # fmt: skip
def test_licences_of_the_hub_and_others(
    plain_disclosure: Callable[..., Disclosure], licence: Licence, expected: dict[str, str]
) -> None:
    disclosure = replace(plain_disclosure(), about=About(licence=licence))
    value = header(dataset_card(disclosure).decode())
    assert {key: value[key] for key in value if str(key).startswith("license")} == expected


def test_texts_cannot_leave_their_place(plain_disclosure: Callable[..., Disclosure]) -> None:
    hostile = "a | b\n# heading\n<script>x</script>\n---\n[l](javascript:x) `code` \x1b[0m"
    disclosure = plain_disclosure()
    sources = tuple(replace(s, label=hostile) for s in disclosure.facts.sources)
    about = About(name=hostile, description=hostile, sources={hostile: AboutSource(kind="public")})
    disclosure = replace(disclosure, about=about, facts=replace(disclosure.facts, sources=sources))
    card = dataset_card(disclosure).decode()
    body = card.split("---\n", 2)[2]
    assert header(card)["pretty_name"] == hostile
    assert "<script" not in body
    assert "javascript:" not in body
    assert "\x1b" not in card.replace("\\x1b", "")
    assert re.findall(r"^# heading", body, re.M) == []
    rows = [line for line in body.splitlines() if line.startswith("| a \\|")]
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
