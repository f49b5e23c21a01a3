"""What every provenance text says of itself: the floor statements and the limits behind them.

They are facts about the method, never findings about a document. `tests/pipeline/provenance/
test_wording.py` requires the floor in reports and cards, and refuses verdicts in all emitted text.
"""

NO_MATCH = (
    "No match is not evidence of absence: only the lists and works named here were looked for, "
    "with the parameters named here."
)
MATCH = (
    "A match is a text overlap, not a finding of copying, ownership or lack of permission: "
    "quotation, licence, public domain or a common source can explain it."
)
NOT_ADVICE = "This is not legal advice."

FLOOR = (NO_MATCH, MATCH, NOT_ADVICE)
"""Stands in report.html, in the audit report and in the dataset card."""

LICENCE = (
    "A licence named here is a licence statement that was found in the data, not a title. "
    "It never outweighs a listed origin."
)
REGISTRATION = (
    "Entries of a registry are statements of those who supplied them; registration records can be "
    "wrong, incomplete or transferred, and it is not registration that creates copyright."
)
LISTS = (
    "Lists of origins state what a dated public source says; an allegation stays an allegation, "
    "and entries can be corrected or removed."
)
CHAIN = (
    "The event chain shows the order of events and that none was changed since it was begun, not "
    "that what was entered is true; its times come from a local clock."
)
DELETED = (
    "Removed means removed from the stores that are listed; weights that were trained on a "
    "document do not change. Steps show exposure, not influence or memorisation."
)
QUARANTINE = (
    "Quarantined documents are kept apart until a retention limit or a purge; a legal hold can "
    "forbid their deletion, so a purge is refused while one is set."
)
TEXT_LIMITS = (
    "Text matching does not find translations, summaries, close paraphrase, or edited passages of "
    "fewer than about 1,000 characters; passages of about 2,000 characters are found with up to a "
    "fifth of the words replaced. For measurements see docs/fingerprints.md and "
    "benchmarks/provenance/."
)
"""From the excerpt suite of the brief (word 6-grams, one hash in 8): recall 1.00 at 1,000 verbatim
characters, 0.995 at 2,000 characters with 20 % of the words substituted."""

EU_DRAFT = (
    "Draft generated from recorded metadata, following the Commission template for the public "
    "summary of training content (Article 53(1)(d) of Regulation (EU) 2024/1689). "
    "The provider is responsible for it."
)
CALIFORNIA_DRAFT = (
    "Draft generated from recorded metadata, following the list of section 3111 of the California "
    "Civil Code (AB 2013). The developer is responsible for it."
)
