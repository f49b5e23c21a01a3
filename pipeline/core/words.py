"""Counts with their nouns, for messages, terminals and pages."""


def pluralise(number: int, noun: str) -> str:
    """A count with its noun, one of it or more.

    >>> pluralise(0, "row"), pluralise(1, "row"), pluralise(1200, "copy"), pluralise(2, "sketch")
    ('0 rows', '1 row', '1,200 copies', '2 sketches')
    >>> pluralise(30, "day")
    '30 days'
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'sh', 'ch', 'x')) else 's'}"
