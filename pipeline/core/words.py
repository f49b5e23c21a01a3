"""Counts with their nouns, for messages, terminals and pages."""


def counted(number: int, noun: str) -> str:
    """A count with its noun, one of it or more.

    >>> counted(1, "row"), counted(1200, "copy"), counted(0, "data set"), counted(2, "sketch")
    ('1 row', '1,200 copies', '0 data sets', '2 sketches')
    >>> counted(30, "day")
    '30 days'
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'sh', 'ch', 'x')) else 's'}"
