"""Copyright lines and other notices."""

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from pipeline.screening.detectors.notices import detect_notices

MakeBatch = Callable[..., pa.Table]


def found_in(batch: pa.Table) -> list[tuple[str, str, int | None]]:
    found = []
    for row in detect_notices(batch).to_pylist():
        text = batch["text"][row["row"]].as_py().encode()
        start = row["byte_offset"]
        assert text[start : start + row["byte_length"]].decode().startswith(row["seen"])
        about = json.loads(row["attributes"])
        assert about.get("holder", row["target"]) == row["target"]
        found.append((row["kind"], row["target"], about.get("year")))
    return found


@pytest.mark.parametrize(
    ("line", "holder", "year"),
    [
        ("Copyright © 1999 Jane Doe", "Jane Doe", 1999),
        ("© 1999 by Jane Doe. All rights kept", "Jane Doe", 1999),
        ("(c) 2001-2004 A. N. Other <a@example.org>", "A. N. Other", 2004),
        ("Copyright (C) 1998, 2000, 2003 Acme, Inc.", "Acme, Inc", 2003),
        ("COPYRIGHT 1987 THE HOUSE PRESS", "THE HOUSE PRESS", 1987),
        ("Copyright: 2003 -- 2011, Jane Doe", "Jane Doe", 2011),
        ("Copyright © 2020 - present Jane Doe", "Jane Doe", 2020),
        ("© Jane Doe 1999", "Jane Doe", 1999),
        ("Copyright by Jane Doe, 1923", "Jane Doe", 1923),
        ("Copyright © Élise Übermaß, 2011", "Élise Übermaß", 2011),
        ("&copy; 2015 Acme", "Acme", 2015),
        ("Copyright 1994", "", 1994),
        ("copyright © 1999\n  by Jane Doe", "Jane Doe", 1999),
        ("© 2011 – Acme, see AUTHORS", "Acme", 2011),
    ],
)
def test_copyright_lines(make_batch: MakeBatch, line: str, holder: str, year: int) -> None:
    batch = make_batch(["", f"Preface\n{line}\n1 Chapter", line])
    assert found_in(batch) == [("copyright", holder, year)] * 2


@pytest.mark.parametrize(
    "text",
    [
        "The copyright law of 1976",
        "copyright holders in 1999",
        "They want the copyright of a work.",
        "Copyright Act 1956",
        "(a) 4 (b) 7 (c) 19",
        "© no year",
        "the years 1999 and 2001",
        "No part of this island is inhabited.",
        "all rights are reserved",
        "He found it at Project Gutenberg.",
        "",
    ],
)
def test_other_texts(make_batch: MakeBatch, text: str) -> None:
    assert found_in(make_batch([text])) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ALL RIGHTS RESERVED.", "rights_reserved"),
        ("No part of this book may be\nreproduced in any form", "reproduction"),
        ("Library of Congress Cataloging-in-Publication Data", "cip"),
        ("A CIP data record", "cip"),
        (
            "\N{ZERO WIDTH NO-BREAK SPACE}The Project Gutenberg EBook of X",
            "public_domain_statement",
        ),
        ("*** START OF THIS PROJECT GUTENBERG EBOOK X ***", "public_domain_statement"),
        ("***This is the Project Gutenberg Etext of X***", "public_domain_statement"),
        ("Note\n\nProject Gutenberg's X, by Y", "public_domain_statement"),
    ],
)
def test_phrases(make_batch: MakeBatch, text: str, kind: str) -> None:
    ((found, _, year),) = found_in(make_batch([text]))
    assert (found, year) == (kind, None)


def test_the_same_line_is_one_finding_with_its_places(make_batch: MakeBatch) -> None:
    line = "Copyright © 1999 Jane Doe\n"
    table = detect_notices(make_batch([line * 3 + "© 2000 Jane Doe"]))
    counts = [json.loads(about)["places"] for about in table["attributes"].to_pylist()]
    assert (counts, table["byte_offset"].to_pylist()) == ([3, 1], [0, 3 * len(line.encode())])
