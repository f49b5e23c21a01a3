"""Licences: declared values to SPDX, statements in texts, conflicts."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from license_expression import get_spdx_licensing

from pipeline.core import zstd
from pipeline.screening.detectors import licences, spdx
from pipeline.screening.detectors.licence_names import FAMILIES
from pipeline.screening.detectors.licences import GROUP, NEEDLES, detect_licences
from pipeline.screening.detectors.spdx import (
    RANKS,
    SpdxLicence,
    look_up_licences,
    normalise_licence,
    parse_expression,
    read_licence_address,
)
from pipeline.screening.detectors.sweep import sweep_all
from pipeline.screening.evidence import FINDINGS

DECLARED = {
    "MIT": "MIT",
    "mit": "MIT",
    "The MIT License (MIT)": "MIT",
    "apache-2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "CC BY-SA 3.0 / 4.0": "CC-BY-SA-3.0 OR CC-BY-SA-4.0",
    "CC-BY-SA-3.0 or GPL-2+": "CC-BY-SA-3.0 OR GPL-2.0-or-later",
    "CC-BY-SA-3.0 text, MIT repo": "CC-BY-SA-3.0 AND MIT",
    "Creative Commons Attribution-NonCommercial-ShareAlike 4.0 International": "CC-BY-NC-SA-4.0",
    "cc-by-sa-nc 4.0": "CC-BY-NC-SA-4.0",
    "cc-by-sa-3.0-de": "CC-BY-SA-3.0-DE",
    "https://creativecommons.org/licenses/by/4.0/legalcode": "CC-BY-4.0",
    "CC BY": "LicenseRef-CC-BY",
    "cc0-1.0": "CC0-1.0",
    "ODC-BY": "ODC-By-1.0",
    "odbl": "ODbL-1.0",
    "GPL-2+": "GPL-2.0-or-later",
    "gpl-2.0": "GPL-2.0-only",
    "GPLv3": "GPL-3.0-only",
    "GNU Lesser General Public License v2.1 or later": "LGPL-2.1-or-later",
    "GFDL-1.2+": "GFDL-1.2-or-later",
    "BSD 3 clause": "BSD-3-Clause",
    "2-clause BSD": "BSD-2-Clause",
    "bsd": "LicenseRef-BSD",
    "public domain": "LicenseRef-scancode-public-domain",
    "Public Domain Mark 1.0": "CC-PDM-1.0",
    "US government work": "LicenseRef-scancode-us-govt-public-domain",
    "all rights reserved": "LicenseRef-All-Rights-Reserved",
    "MIT/Apache-2.0": "MIT OR Apache-2.0",
    "GPL-3.0-or-later AND (MIT OR BSD-2-Clause)": "GPL-3.0-or-later AND (MIT OR BSD-2-Clause)",
    "GPL-2.0-only WITH Classpath-exception-2.0": "GPL-2.0-only WITH Classpath-exception-2.0",
    "llama2": "LicenseRef-scancode-llama-2-license-2023",
    "openrail": "LicenseRef-OpenRAIL",
    "not public domain": "",
    "user comments, no licence stated": "",
    "mostly verbatim/GPL-2+": "",
    "unknown": "",
    "other": "",
    "by": "",
    "3.0": "",
    "": "",
}

PILE_UNKNOWN = {
    "BC5CDR sample",
    "man-pages licences (mostly verbatim/GPL-2+, per page)",
    "public release by FERC (Enron-Spam ham part)",
    "user comments, no licence stated; small sample",
}


@pytest.mark.parametrize(("declared", "spdx"), DECLARED.items())
def test_declared_values(declared: str, spdx: str) -> None:
    assert normalise_licence(declared).spdx == spdx


def test_table_of_declared_values() -> None:
    table = look_up_licences(["mit", "zzz", "mit", "cc-by-nc-4.0"]).to_pylist()
    assert [tuple(row.values()) for row in table] == [
        ("cc-by-nc-4.0", "CC-BY-NC-4.0", True, "restricted"),
        ("mit", "MIT", True, "permissive"),
        ("zzz", "", False, ""),
    ]


_PARTS = [
    "MIT", "GPL-2.0-only", "WITH", "and", "OR", "(", ")", " ", "+", "/", ",", "\0", "é", "2.0",
    "Classpath-exception-2.0", "-", "\n", "LicenseRef-x", ":", "\"", "cc", "by",
]  # fmt: skip


@given(st.lists(st.sampled_from(_PARTS), max_size=14) | st.text(max_size=400).map(list))
def test_any_value_is_unknown_or_a_valid_expression(parts: list[str]) -> None:
    licence = normalise_licence("".join(parts))
    assert licence.family in ("", *RANKS)
    if licence.spdx:
        licensing = get_spdx_licensing()
        keys = set(licensing.license_keys(licensing.parse(licence.spdx)))
        assert not keys - set(licensing.known_symbols) - set(FAMILIES)
        assert normalise_licence(licence.spdx) == licence


def test_an_identifier_alone_is_what_the_parser_makes_of_it() -> None:
    index = spdx._load_index()
    for identifier in (*index.categories, *index.aliases, *FAMILIES):
        tree = spdx._parse(identifier)
        assert parse_expression(identifier) == SpdxLicence(tree.render(), spdx._find_family(tree))
    assert len(index.categories) > 1500 and index.aliases["GPL-2.0+"] == "GPL-2.0-or-later"


def test_an_identifier_alone_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdx, "_load_licensing", None)
    parse = parse_expression.__wrapped__
    found = [parse(name).spdx for name in ("MIT", "GPL-2.0", "LicenseRef-BSD", "a licence")]
    assert found == ["MIT", "GPL-2.0-only", "LicenseRef-BSD", ""]


def test_the_index_is_the_same_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path))
    load = spdx._load_index.__wrapped__
    made = load()
    monkeypatch.setattr(spdx, "_read_index", None)
    assert load() == made == spdx._load_index()
    assert [list(part) for part in load()] == [list(part) for part in made]


def test_families_of_choices_and_of_sums() -> None:
    assert normalise_licence("MIT OR GPL-2.0-only").family == "permissive"
    assert normalise_licence("MIT AND GPL-2.0-only").family == "share-alike"
    assert read_licence_address("https://example.org/licenses/by/4.0") == ""


def _detected(*documents: tuple[str, str]) -> list[dict[str, Any]]:
    """Findings of documents given as (declared licence, text), each text in a chunk of its own."""
    chunks = [pa.array([text], pa.large_string()) for _, text in documents]
    batch = pa.table(
        {"licence": pa.array([d for d, _ in documents], pa.string()),
         "text": pa.chunked_array(chunks, pa.large_string())}
    )  # fmt: skip
    table = detect_licences(batch, sweep_all(batch["text"], {GROUP: NEEDLES}))
    assert table.schema == FINDINGS
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["attributes"] = json.loads(row["attributes"])
        if row["byte_length"]:
            data = documents[row["row"]][1].encode()
            place = data[row["byte_offset"] : row["byte_offset"] + row["byte_length"]]
            assert row["seen"].encode() == place[:200]
    return rows


STATED = {
    "// SPDX-License-Identifier: GPL-2.0-or-later\nint x;": ("GPL-2.0-or-later", "tag", "high"),
    "# SPDX-License-Identifier: MIT OR Apache-2.0": ("MIT OR Apache-2.0", "tag", "high"),
    'é This work is licensed under <a href="https://creativecommons.org/licenses/by-nc/4.0/">it':
        ("CC-BY-NC-4.0", "address", "high"),
    "Photo: https://creativecommons.org/licenses/by/2.0/ by X.": ("CC-BY-2.0", "address", "low"),
    "This file is licensed under the MIT License.": ("MIT", "name", "high"),
    "The game Foo was released under the MIT License in 2004.": ("MIT", "name", "low"),
    "Permission is granted to copy, distribute and/or modify this document under the terms of the "
    "GNU Free Documentation License, Version 1.3 or any later version":
        ("GFDL-1.3-or-later", "name", "high"),
    "you can redistribute it and/or modify it under the terms of the GNU General Public License as "
    "published by the Free Software Foundation; either version 2 of the License, or (at your "
    "option) any later version.": ("GPL-2.0-or-later", "name", "high"),
    "Permission is hereby granted, free of charge, to any person": ("MIT", "wording", "high"),
    "© 2019 Jane Roe. All rights reserved.": ("LicenseRef-All-Rights-Reserved", "notice", "high"),
    "They wrote 'all rights reserved' on the door": ("LicenseRef-All-Rights-Reserved", "notice",
                                                     "low"),
    "No part of this book may be reproduced in any form": ("LicenseRef-All-Rights-Reserved",
                                                           "notice", "high"),
    "This text is in the public domain.": ("LicenseRef-scancode-public-domain", "name", "high"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "stated"), STATED.items())
def test_statements(text: str, stated: tuple[str, str, str]) -> None:
    (row,) = _detected(("", text))
    assert row["kind"] == "statement"
    assert (row["target"], row["attributes"]["basis"], row["attributes"]["confidence"]) == stated


@pytest.mark.parametrize(
    "text",
    ["The novel entered the public domain in 1990.", "a CC by hand", "no part of this is new",
     "creativecommons.org/ is a site", "SPDX-License-Identifier: nonsense"],
)  # fmt: skip
def test_no_statement(text: str) -> None:
    assert _detected(("", text)) == []


def _kinds(declared: str, text: str) -> list[tuple[str, str]]:
    return [(row["kind"], row["target"]) for row in _detected((declared, text))]


def test_conflicts() -> None:
    reserved = "Copyright 2019 Jane Roe. All rights reserved."
    target = "LicenseRef-All-Rights-Reserved"
    assert _kinds("mit", reserved) == [("conflict", target), ("statement", target)]
    assert ("conflict", "CC-BY-NC-4.0") in _kinds(
        "cc-by-4.0", "This article is licensed under CC BY-NC 4.0, you may share it."
    )
    gpl = "# SPDX-License-Identifier: GPL-3.0-only"
    assert ("conflict", "GPL-3.0-only") in _kinds("Apache-2.0", gpl)


def test_no_conflict() -> None:
    bsd = (
        "Copyright 2019 X. All rights reserved.\nRedistribution and use in source and binary forms"
    )
    for declared, text in (
        ("BSD-3-Clause", bsd),
        (
            "MIT",
            "Copyright X. All rights reserved. Use of this is governed by a BSD-style license.",
        ),
        ("zzz", "© X. All rights reserved."),
        ("", "© X. All rights reserved."),
        ("cc-by-sa-4.0", "# SPDX-License-Identifier: GPL-3.0-only"),
        ("gpl-3.0", "This file is licensed under the MIT License."),
        ("public domain", "This file is licensed under the MIT License."),
        ("mit", "Foo is sold under the GNU General Public License"),
    ):
        assert "conflict" not in {kind for kind, _ in _kinds(declared, text)}


def test_declared_rows_only_where_unknown_or_restricted() -> None:
    rows = _detected(("mit", ""), ("zzz\x1b", ""), ("", ""), ("cc-by-nc-4.0", ""), ("zzz\x1b", ""))
    assert [(r["row"], r["kind"], r["target"], r["seen"]) for r in rows] == [
        (1, "declared", "NOASSERTION", "zzz\x1b"),
        (3, "declared", "CC-BY-NC-4.0", "cc-by-nc-4.0"),
        (4, "declared", "NOASSERTION", "zzz\x1b"),
    ]


def test_repeated_statements_are_told_once() -> None:
    text = "The tool has the MIT License. "
    own = "This file is licensed under the MIT License."
    (row,) = _detected(("", text * 20 + "x" * 400 + ".\n" + own))
    assert row["attributes"]["confidence"] == "high"
    assert len(_detected(("", text * 5000))) == 1


@given(st.text("creativommns.g/li\nMIT cc-by0© All rights reserved", max_size=300))
def test_any_text(text: str) -> None:
    _detected(("mit", f"cc-by {text} creativecommons.org/{text} all rights reserved"))


_GRANTS = st.from_regex(licences._GRANT) | st.binary()


@pytest.mark.parametrize(("pattern", "words"), licences._NAME_PATTERNS)
@given(st.data())
def test_every_match_has_one_of_its_words(
    pattern: re.Pattern[bytes], words: tuple[bytes, ...], data: st.DataObject
) -> None:
    name = data.draw(st.from_regex(pattern, fullmatch=True))
    assert any(word in name for word in words)


@given(st.lists(_GRANTS, max_size=3).map(b".".join))
def test_a_grant_is_in_the_last_sentence(before: bytes) -> None:
    whole, last = (licences._GRANT.search(part) for part in (before, before.rpartition(b".")[2]))
    assert (whole and whole[0]) == (last and last[0])


@pytest.mark.parametrize(
    "name", ["GNU GENERAL PUBLIC LICENSE", "MIT LICENSE", "CREATIVE COMMONS BY"]
)
def test_case_does_not_matter(name: str) -> None:
    text = "THIS SOFTWARE IS LICENSED UNDER THE {}"
    loud, quiet = (_detected(("", said)) for said in (text.format(name), text.format(name).lower()))
    facts = ("target", "byte_offset", "byte_length")
    assert [[row[fact] for fact in facts] for row in loud] == [
        [row[fact] for fact in facts] for row in quiet
    ]
    assert loud


def test_the_first_statement_of_high_confidence_is_told() -> None:
    own = "This work is licensed under the MIT license. "
    text = f"See the MIT license. {own}{own}"
    (row,) = _detected(("", text))
    assert row["byte_offset"] == text.index(own) + own.index("MIT")


@pytest.mark.shared_data
def test_licences_of_the_pile_sample(shared_data: Path) -> None:
    values = set()
    for shard in sorted((shared_data / "pile_sample").glob("*.zst")):
        for line in zstd.decompress(shard.read_bytes()).splitlines():
            values.add(json.loads(line)["meta"]["license"])
    assert len(values) == 27
    table = look_up_licences(values)
    unknown = {row["declared"] for row in table.to_pylist() if not row["known"]}
    assert unknown == PILE_UNKNOWN
