"""What every document is made of: the facts of a run, what its owner says, and which edition."""

import hashlib
from dataclasses import dataclass

from pipeline.core.errors import escape_text
from pipeline.provenance.disclosure.about import About, Answer, find_answer
from pipeline.provenance.disclosure.facts import Facts
from pipeline.provenance.disclosure.files import PublishedFile

PREVIEW_WORDS = 15
_WORD_CHARACTERS = 30


@dataclass(frozen=True)
class Disclosure:
    """A run to be disclosed. The public edition shows hashes in the place of passages, of titles,
    authors and contacts in registries, and of what opt-out signals name."""

    facts: Facts
    about: About
    public: bool
    files: tuple[PublishedFile, ...] = ()

    @property
    def edition(self) -> str:
        """`public` or `internal`."""
        return "public" if self.public else "internal"

    @property
    def name(self) -> str:
        """Name of the data set, else that of the config."""
        return self.about.name or self.facts.identity.config

    def said(self, key: str) -> Answer:
        """What about.yaml says under a dotted key, else a TODO."""
        return find_answer(self.about, key)

    def shown(self, text: str) -> str:
        """Text that only the internal edition shows; its hash in the public one."""
        return hash_words(text) if self.public and text else text


def hash_words(text: str) -> str:
    """A name for a text that does not show it.

    >>> hash_words("some text")
    'sha256 b94f6f125c79e3a5'
    """
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def preview(text: str) -> str:
    """The first 15 words of a passage; of scripts without spaces, 30 characters count as a word.

    >>> preview("one two three"), len(preview("word " * 40).split())
    ('one two three', 16)
    """
    words = text.split()
    shown = [w if len(w) <= _WORD_CHARACTERS else w[:_WORD_CHARACTERS] for w in words]
    cut = len(words) > PREVIEW_WORDS or shown != words
    return escape_text(" ".join(shown[:PREVIEW_WORDS]), 480) + (" …" if cut else "")
