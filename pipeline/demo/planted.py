"""What is planted in the quickstart corpus: hand-written records that make every drop reason show,
and two that hold text of an invented short work, which is registered in the demo.

All texts, the work's author and its registration number were made up for this file, and are given
to the public domain (CC0-1.0). One record is a copy of the work without title and author, one a
talk into which an edited passage was pasted; `prep run quickstart` finds both by their text. The
record that is labelled Books3 claims `license: mit`, as the public copy of that set once did.
"""

from collections.abc import Iterator

import msgspec

LIST = """\
title,author,registration number,registration date,copyright claimant,status,basis,text
The ferry that ran on Tuesdays: a story,Marta Quillfeather,TX0000000000,2001-02-03,\
Marta Quillfeather,asserted,invented for the demo,ferry.txt
"""
"""The registry's only row, as a list of works has it."""

TEXT = """\
The ferry ran on Tuesdays because the council had once bought a timetable at an auction and could \
not afford a second one. It had belonged to a railway, so the columns were headed with the names \
of stations that nobody on the island had ever seen, and the only row that fitted the tide was \
the one for Tuesday. Ansel Brook, who steered the ferry, learned the stations by heart. When the \
rope came off the bollard he called out Great Marlow, and when the hull touched the slip on the \
other side he called out Penrith, and the passengers picked up their baskets and went ashore.

He had inherited the boat from an aunt who was afraid of water. She had kept it in a barn for \
thirty years with hens in the wheelhouse, and on the day she handed it over she gave him a list of \
the hens with the dates on which each of them had stopped laying. Ansel pinned the list above the \
compass. It was the only log the boat had, and he thought a boat without a log would be ashamed \
in front of the others, although there were no others for forty miles.

On the first Tuesday of October a woman came aboard with a door. It was an ordinary green door \
with a brass number seven on it, and she stood it upright against the rail and held it shut with \
one hand as if there were a draught. Ansel asked whether the door was cargo or a passenger, since \
the fares were different. She considered that. She said that behind it her brother was asleep, and \
that he had paid for the whole of last year in advance and had never once been taken across. Ansel \
looked it up in the list of hens, because there was nothing else to look it up in, and between \
Henrietta and Small Brown he found, in the handwriting of his aunt, a ticket made out to number \
seven. So he charged her for one, and called out Great Marlow, and let go the rope.

Halfway over the fog came down. It came as it always did there, not rolling in from anywhere but \
rising out of the planks, and within a minute he could not see the bow. He rang the bell. From \
somewhere to the left another bell answered, a little flat, and half a second late. In eleven \
years he had never heard an answer. He rang twice and was answered twice; he rang the pattern that \
his aunt had used to call the hens, and it came back to him note for note, with the pause before \
the last stroke that only she had ever made. The woman with the door said that he should not be \
alarmed, that it was merely the Wednesday boat, and that it ran on the water left over from the \
day before.

He could not help asking whether one might change from one to the other. People did, she said, but \
they needed a door. She turned the brass seven on its screw until it hung upside down and read \
like a letter from some other alphabet, and then she knocked, politely, as one knocks at the house \
of a doctor. The green door opened outward over the sea. Behind it were three stairs, a strip of \
yellow carpet and a smell of toast. A man in shirtsleeves stood on the second stair with a cup in \
his hand and said that she was early, and that she had better come in before the milk turned.

When the fog lifted the ferry was lying against the slip with her rope already made fast, and the \
woman and the door were gone. In the wheelhouse, on the shelf below the compass, there sat a small \
brown hen. Ansel called out Penrith, since somebody had to. Then he took down the list, found the \
line, crossed out a date that had stood there for thirty years, and wrote beside it, in his best \
hand, the word Tuesday.
"""

_TALK = """\
Minutes of the allotment society, autumn meeting. The treasurer reported that the water bill had \
doubled and that the hose had been left running over the whole of the bank holiday. It was agreed \
to put a timer on the standpipe and a notice on the gate. The secretary thanked everybody who had \
helped to clear the ditch, and in particular the three members who had lent wheelbarrows and had \
not had them all back. Plot nineteen is still without a tenant. Applications are to be sent to the \
usual address before the end of the month, together with two references and a sketch of the shed.

The chairman then reminded members that dogs are to be kept on a lead between the compost and the \
orchard, because of the hedgehogs. A long discussion followed on bonfires. The old rule allowed \
them on two evenings a week, the new one allows them on none, and nobody could remember when the \
rule had been changed or who had changed it. It was decided by nine votes to four to look for the \
minutes. Somebody read aloud, to lighten the mood, from a sheet that was found in the tool shed:

{passage}

The chairman thanked the reader and closed the item. The prize for the heaviest marrow goes to \
plot six for the fourth time running; the committee will weigh the winner with its own scales next \
year. Seed potatoes can be ordered until the first of February. The next meeting takes place in \
the school hall, where the heating has been repaired, and members are asked to bring a chair each, \
since the school needs its own for the examinations. There being no further business, the meeting \
ended at twenty minutes past nine, and tea was served by the ladies of plot two.
"""

_SUBSTITUTES = ("somehow", "perhaps", "a pale", "later", "the old", "twice", "by chance")
_EVERY = 9


def work_records() -> Iterator[tuple[str, str]]:
    """File name and text of what the corpus holds of the work."""
    yield "sheets.txt", TEXT.replace("\n\n", "\n   \n  ").replace("'", "\u2019")
    paragraphs = TEXT.split("\n\n")
    yield "minutes.txt", _TALK.format(passage=_edit("\n\n".join(paragraphs[2:4])))


def _edit(text: str) -> str:
    """The text with every ninth word replaced."""
    words = text.split(" ")
    for number, place in enumerate(range(_EVERY - 1, len(words), _EVERY)):
        words[place] = _SUBSTITUTES[number % len(_SUBSTITUTES)]
    return " ".join(words)


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
        **dict(work_records()),
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
