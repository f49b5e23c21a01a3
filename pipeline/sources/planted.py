"""Hand-written records that make every drop reason show in the quickstart corpus.

All texts were written for this file and are given to the public domain (CC0-1.0). The record that
is labelled Books3 claims `license: mit`, as the public copy of that set once did; its text is not
from any book.
"""

from collections.abc import Iterator

import msgspec

from pipeline.sources import registered_work

__all__ = ["lines"]

_BOOK = """\
The lighthouse keeper counted the gulls every morning and wrote the number in a blue notebook. \
When the fog came in he wrote a question mark instead. His sister, who kept the ferry, said that \
a question mark was not a number and that the ledger would never add up. He answered that the \
ledger was not there to add up, it was there to remember which mornings had been seen at all. \
They argued about it for eleven years, and the notebooks filled two shelves above the stove.
"""

_MARKED = """\
A short guide to baking bread in a cold kitchen.

Warm the flour first, and the bowl with it. A cold bowl takes the heat out of the dough faster \
than the yeast can make it. Cover the dough with a damp cloth, put it beside the kettle and wait \
for twice as long as the recipe says. Nothing is lost by waiting; a slow loaf tastes better.

Downloaded from z-lib.org. More free books at libgen.is, the mirror never sleeps.
"""

_GERMAN = """\
Am Morgen war der Fluss über die Ufer getreten, und die Brücke stand schräg im Wasser. Die \
Bäckerin öffnete trotzdem um fünf, denn schön warm war es nur vor ihrem Ofen. Später kamen die \
Männer von der Straße, müde und durchnäßt, und fragten, ob noch Brötchen für alle übrig wären. Es \
waren genügend da, und niemand mußte dafür bezahlen.
"""

_FRENCH = """\
Le relieur travaillait près de la fenêtre, là où la lumière était la plus douce. Il avait posé \
sur la table un vieux registre abîmé, dont les pages s'étaient détachées après une inondation. \
Chaque soir il numérotait les feuillets séchés, puis il notait dans un carnet ce qui manquait. \
Au bout de l'été, le registre fut complet, excepté une page que personne n'avait réclamée.
"""

_DUPLICATE = """\
Notes on keeping a spare key. Give one key to a neighbour who is usually at home, and one to a \
friend who lives far enough away not to lose it on the same evening. Do not hide a key under a \
stone, because everyone looks under stones. Write down who has which key, and read the list once \
a year, on the day when the clocks change, since that day is short of other duties anyway.
"""

_NEAR = """\
How the village weather station works. A box with slatted sides stands on four legs in the middle \
of the meadow, one and a half metres above the grass, so that the sun never falls on the \
thermometers inside. Every day at seven, at two and at nine somebody walks across the meadow, \
opens the door, reads the two thermometers and closes the door again without breathing on them. \
The readings go into a table that hangs in the school. On the first day of the month the oldest \
pupils add up the columns and divide by the number of days, and on the second day they do it once \
more, because the first result is wrong in two years out of three. Rain is measured in a copper \
{vessel} whose rim is filed to a sharp edge. Snow has to be melted before it counts, which is why \
the winter totals are late. Wind is harder. The vane on the roof of the fire station shows the \
direction, but the strength is estimated from what moves: smoke, leaves, twigs, branches, tiles. \
When tiles move nobody walks across the meadow, and the table shows a dash. Once a year a woman \
from the city compares the thermometers with her own and says that ours are a tenth of a degree \
too kind. We write the tenth into the margin and go on. The series began sixty years ago and has \
eleven dashes in it. No newer instrument has replaced it so far, since nobody wants to be the one \
who ends the row, and the meadow would be only a meadow.
"""

_SPECIAL = """\
Some tokenizers reserve a string to mark the border between two documents. It looks like this: \
<|endoftext|> and a text that merely talks about it, as this one does, must keep it as ordinary \
characters. A preparation that turns it into the separator would split the document in two and \
could no longer tell where one text ends and where the next text begins.
"""

_BROKEN = b'{"text": "This line was cut off in the middle of the record, as a full disk may do'
_SURROGATE = (
    b'{"text": "An escape sequence that names one half of a pair: \\ud83d and nothing after it. '
    b"Such a text cannot be written as UTF-8 at all, so the record has to be counted as bad and "
    b'left out, and the run has to go on with the next line.", "meta": {"pile_set_name": '
    b'"Planted", "license": "CC0-1.0", "path": "planted/surrogate.txt"}}'
)


def lines() -> Iterator[bytes]:
    """The planted lines in file order: thirteen records and two that cannot be read."""
    yield _line("Books3", "mit", "keeper.txt", _BOOK)
    records = {
        "bread.txt": _MARKED,
        "mojibake-de.txt": _misread(_GERMAN),
        "mojibake-fr.txt": _misread(_FRENCH),
        "tiny-1.txt": "To do: water the plants.",
        "tiny-2.txt": "This page was left blank on purpose, and this sentence spoils it.",
        "keys.txt": _DUPLICATE,
        "keys-copy.txt": _DUPLICATE,
        "weather.txt": _NEAR.format(vessel="funnel"),
        "weather-edited.txt": _NEAR.format(vessel="bucket"),
        "special-token.txt": _SPECIAL,
        **dict(registered_work.records()),
    }
    for name, text in records.items():
        yield _line("Planted", "CC0-1.0", name, text)
    yield _BROKEN
    yield _SURROGATE


def _line(source: str, licence: str, name: str, text: str) -> bytes:
    meta = {"pile_set_name": source, "license": licence, "path": f"planted/{name}"}
    return msgspec.json.encode({"text": text, "meta": meta})


def _misread(text: str) -> str:
    """UTF-8 read as Windows-1252, the commonest mojibake.

    >>> _misread("schön")
    'schÃ¶n'
    """
    return text.encode().decode("cp1252")
