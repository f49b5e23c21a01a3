"""Titles, authors and file names made from a seed: a registry, decoys, and variants of two works.

The two works are the registry entries of the complaint's Exhibit A: facts of public records, no
text of theirs. Every other name is invented: words of titles at large, and words and surnames put
together from syllables, drawn with frequencies like those of real ones (Zipf).
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from pipeline.screening.detectors.title_words import COMMON_WORDS
from pipeline.screening.registry.names import normalise_title, split_authors, split_title
from pipeline.screening.registry.works import Work, make_work_id, make_works_table

EXHIBIT = (
    ("Negrophobia: an urban parable: a novel / Darius James.", "TX0003372564"),
    ("That's blaxploitation! : roots of the baadasssss 'tude (rated X by an all-whyte jury) / "
     "Darius James.", "TX0004193939"),
)  # fmt: skip
_AUTHOR = ("Darius", "James")


def _listed(*lines: str) -> list[str]:
    return [word for line in lines for word in line.split()]


_FIRST = _listed(
    "Anna Amir Beth Carl Clara Colin Daniel Darius David Dora Edith Emil Eve Fatima Felix Frank",
    "Grace Hana Henry Ida Ivan Jack Jane John Jonas Julia Karim Kate Laura Leo Lucy Maria Mark",
    "Mary Max Mei Nina Noah Olga Oscar Paul Peter Rosa Ruth Sara Simon Sofia Thomas Vera Viktor",
    "Walter Yusuf",
)
_SURNAMES = _listed(
    "Smith Johnson Williams Brown Jones Miller Davis Wilson Anderson Taylor Thomas Moore Martin",
    "Jackson Thompson White Lopez Lee Gonzalez Harris Clark Lewis Robinson Walker Young Allen",
    "King Wright Scott Green Baker Adams Nelson Hill Campbell Mitchell Roberts Carter James",
)
_ONSETS = _listed(
    "b br c ch d dr f g gr h j k l m n p pr r s sh st t tr v w z",
)
_NUCLEI = _listed(
    "a e i o u ai ea ou",
)
_CODAS = _listed(
    "l n r s t nd rk th m ck",
)


@dataclass(frozen=True)
class Named:
    """A document by what it says of itself: metadata, first lines, and the work it is named after
    ("" for one of no registry)."""

    meta: dict[str, str]
    text: str
    work_id: str


class Names:
    """Invented titles and authors, a function of the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        common = sorted(COMMON_WORDS)
        self.random.shuffle(common)
        made = [self.word() for _ in range(20_000)]
        self.vocabulary = [w for pair in zip(made, common, strict=False) for w in pair] + made
        self.weights = [*accumulate(1 / (rank + 20) for rank in range(len(self.vocabulary)))]
        self.surnames = _SURNAMES + [self.word().capitalize() for _ in range(4_000)]
        self.surname_weights = [*accumulate(1 / (rank + 10) for rank in range(len(self.surnames)))]

    def word(self) -> str:
        """An invented word of two or three syllables."""
        draw = self.random.choice
        parts = [draw(_ONSETS) + draw(_NUCLEI) for _ in range(self.random.randint(1, 2))]
        return "".join(parts) + draw(_ONSETS) + draw(_NUCLEI) + draw(_CODAS)

    def title(self) -> str:
        """A title, every second time with a subtitle."""
        words = self._words(self.random.randint(1, 5))
        main = " ".join(word.capitalize() for word in words)
        if self.random.random() < 0.5:
            return main
        return f"{main}: {' '.join(self._words(self.random.randint(2, 5)))}"

    def author(self) -> tuple[str, str]:
        """First name and surname."""
        surname = self.random.choices(self.surnames, cum_weights=self.surname_weights)[0]
        return self.random.choice(_FIRST), surname

    def _words(self, count: int) -> list[str]:
        return self.random.choices(self.vocabulary, cum_weights=self.weights, k=count)


def work(title: str, author: tuple[str, str] | None, reg_no: str = "") -> Work:
    """A row of the registry; without an author, the statement of responsibility names it."""
    parts = split_title(title)
    names = (" ".join(author),) if author else split_authors(parts.responsibility)
    return Work(
        work_id=make_work_id(parts.title, parts.subtitle, names, reg_no),
        title_raw=title,
        title_norm=normalise_title(parts.title),
        subtitle=parts.subtitle,
        authors=names,
        reg_no=reg_no,
    )


def exhibit() -> list[Work]:
    """The two works of Exhibit A."""
    return [work(title, None, reg_no) for title, reg_no in EXHIBIT]


def registry(names: Names, size: int) -> pa.Table:
    """WORKS: Exhibit A and invented works, `size` in all."""
    works = {one.work_id: one for one in exhibit()}
    while len(works) < size:
        one = work(names.title(), names.author())
        works[one.work_id] = one
    return make_works_table(works.values())


def variants(names: Names, count: int) -> list[Named]:
    """`count` documents named after the works of Exhibit A, in the ways of files and data sets."""
    found = []
    for number in range(count):
        one = exhibit()[number % 2]
        make = _SHAPES[(number // 2) % len(_SHAPES)]
        meta, text = make(_Spelling(one, names.random))
        found.append(Named(_with_noise(meta, names.random), text, one.work_id))
    return found


def decoys(names: Names, count: int) -> list[Named]:
    """`count` documents named after works of no registry. One in ten is near to Exhibit A: the same
    author's other book, the same title by somebody else, words of the title in another one."""
    found = []
    for number in range(count):
        title, author = names.title(), names.author()
        if number % 10 == 0:
            title, author = _near(names, number // 10)
        shape = _SHAPES[number % len(_SHAPES)]
        meta, text = shape(_Spelling(work(title, author), names.random))
        found.append(Named(_with_noise(meta, names.random), text, ""))
    return found


def batch(documents: list[Named]) -> pa.Table:
    """The columns that `detect_titles` reads; every second meta is ASCII-escaped."""
    metas = [json.dumps(d.meta, ensure_ascii=n % 2 == 0) for n, d in enumerate(documents)]
    texts = pa.array([d.text for d in documents], pa.large_string())
    return pa.table({"meta": pa.array(metas, pa.string()), "text": texts})


def _near(names: Names, number: int) -> tuple[str, tuple[str, str]]:
    mains = ("Negrophobia", "That's Blaxploitation", "An Urban Parable", "Roots of the 'Tude")
    main = mains[number % len(mains)]
    other = next(a for a in iter(names.author, None) if a[1] != "James")
    return (
        (names.title(), _AUTHOR),
        (main, other),
        (f"{main} and {names.title()}", (names.random.choice(_FIRST[:5]), "James")),
        (f"{names.word().capitalize()} {main.split()[-1]}: {names.title()}", other),
    )[(number // len(mains)) % 4]


class _Spelling:
    """One work as a record may spell it."""

    def __init__(self, one: Work, draw: random.Random) -> None:
        parts = split_title(one.title_raw)
        self.first, self.last = one.authors[0].rsplit(" ", 1)
        self.isbd = one.title_raw
        full = f"{parts.title}: {parts.subtitle}" if parts.subtitle else parts.title
        self.title = draw.choice((parts.title, full))
        if draw.random() < 0.25:
            self.title = self.title.replace("baadasssss", "baadassss").replace("'", "\u2019")
        self.year, self.draw = str(draw.randint(1950, 2020)), draw
        self.file = self.title.replace(":", draw.choice((" -", "_", ""))).replace("/", "")
        self.underscored = self.file.replace(" ", "_")
        self.extension = draw.choice((".epub.txt", ".epub", ".pdf", ".mobi", ".txt"))
        self.body = "It was late, and nobody had come.\nThe rain went on."


Shape = Callable[[_Spelling], tuple[dict[str, str], str]]
_SHAPES: tuple[Shape, ...] = (
    lambda s: ({"title": s.title, "author": f"{s.first} {s.last}"}, s.body),
    lambda s: ({"title": s.title.upper(), "author": f"{s.last}, {s.first}"}, s.body),
    lambda s: ({"title": f"{s.title} [{s.year}]", "author": f"{s.last}, {s.first[0]}."}, s.body),
    lambda s: ({"title": s.isbd, "author": f"{s.first} {s.last}"}, s.body),
    lambda s: ({"name": f"{s.first} {s.last} - {s.file} ({s.year}){s.extension}"}, s.body),
    lambda s: ({"filename": f"{s.last}, {s.first} - {s.file}{s.extension}"}, s.body),
    lambda s: ({"path": f"books/{s.last}_{s.first}-{s.underscored}_(retail){s.extension}"}, s.body),
    lambda s: ({"file_name": f"{s.file} by {s.first} {s.last} (z-lib.org){s.extension}"}, s.body),
    lambda s: ({"path": f"{s.first} {s.last}/{s.file} (v5.0){s.extension}"}, s.body),
    lambda s: ({"source": f"bib/{s.file} -- {s.first} {s.last} -- {s.year}{s.extension}"}, s.body),
    lambda s: ({"title": f"{s.first} {s.last} - {s.title}"}, s.body),
    lambda s: ({"title": f"{s.title}, by {s.first} {s.last}"}, s.body),
    lambda s: ({"set": "x"}, f"{s.title.upper()}\n\nby\n\n{s.first} {s.last}\n\n{s.body}"),
    lambda s: ({"title": s.title}, f"{s.title}\nBy {s.first} {s.last}\n{s.body}"),
    lambda s: ({"filename": f"{s.last.upper()} {s.first[0]}. - {s.file}{s.extension}"}, s.body),
)  # fmt: skip


def _with_noise(meta: dict[str, str], draw: random.Random) -> dict[str, str]:
    """One value in twenty has a letter doubled or left out, as typed titles do."""
    if draw.random() >= 0.05:
        return meta
    key = draw.choice(sorted(meta))
    value = meta[key]
    place = draw.randrange(len(value))
    return {**meta, key: value[:place] + draw.choice((value[place] * 2, "")) + value[place + 1 :]}
