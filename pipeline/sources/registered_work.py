"""An invented short work that is registered in the demo, and what the demo's corpus holds of it.

The story, its author and its registration number were made up for this file, and its text is given
to the public domain (CC0-1.0). The corpus holds a copy without title and author, and a talk about
something else into which an edited passage was pasted. No record says where the words come from;
`prep run quickstart` finds both by their text.
"""

from collections.abc import Iterator

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


def records() -> Iterator[tuple[str, str]]:
    """File name and text of what the corpus holds of the work."""
    yield "sheets.txt", TEXT.replace("\n\n", "\n   \n  ").replace("'", "\u2019")
    paragraphs = TEXT.split("\n\n")
    yield "minutes.txt", _TALK.format(passage=_edited("\n\n".join(paragraphs[2:4])))


def _edited(text: str) -> str:
    """The text with every ninth word replaced."""
    words = text.split(" ")
    for number, place in enumerate(range(_EVERY - 1, len(words), _EVERY)):
        words[place] = _SUBSTITUTES[number % len(_SUBSTITUTES)]
    return " ".join(words)
