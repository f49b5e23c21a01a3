"""Lists of origins and artefacts: the shipped ones, and errors a user can act on."""

from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.screening.detectors.lists import (
    fold_label,
    list_spellings,
    load_artefacts,
    load_origins,
    load_shipped_artefacts,
    load_shipped_origins,
)

START = "name: mine\nversion: '3'\n"
FAMILY = START + "families:\n  - family: acme\n    basis: Court order of 1 May 2031\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "list.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_families_state_their_basis() -> None:
    families = {family.family: family for family in load_shipped_origins().families}
    assert {
        "books3",
        "bibliotik",
        "libgen",
        "zlibrary",
        "scihub",
        "annas_archive",
        "bookcorpus",
    } <= set(families)
    assert all(any(c.isdigit() for c in family.basis) for family in families.values())


def test_the_shipped_list_of_artefacts_names_none() -> None:
    assert (load_shipped_artefacts().files, load_shipped_artefacts().texts) == ((), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (START, "list.yaml:1: families: missing"),
        (FAMILY + "    domain: [acme.example]\n", "did you mean 'domains'"),
        (FAMILY + "    domains: [acme]\n", "expected domains such as lib.example or NAME"),
        (FAMILY + "    domains: ['https://acme.example']\n", "https://acme.example is not one"),
        (FAMILY + "    domains: ['a.*.b']\n", "expected domains"),
        (FAMILY + "    names: [ab]\n", "expected three characters or more"),
        (FAMILY + "    repositories: [a/b/c]\n", "expected NAME or OWNER/NAME"),
        (FAMILY.replace("acme", "Acme Inc"), "families.0.family"),
        (FAMILY + FAMILY[len(START) + len("families:\n") :], "'acme' is listed twice"),
    ],
)
def test_errors_of_origin_lists(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_origins(written(tmp_path, text))
    assert message in str(error.value)


def test_errors_of_artefact_lists(tmp_path: Path) -> None:
    text = START + "files:\n  - {sha256: 12ab, family: acme, basis: Court order of 2031}\n"
    with pytest.raises(ConfigError, match=r"list.yaml:4: files.0.sha256: .*got \"12ab\""):
        load_artefacts(written(tmp_path, text))


def test_spellings_and_label_keys() -> None:
    assert "library\ngenesis" in set(list_spellings(["library genesis"]))
    assert list(list_spellings(["books3"])) == ["books3"]
    keys = {fold_label(label) for label in ("Sci-Hub", "sci hub", "SCI_HUB", "scihub")}
    assert keys == {"scihub"}
