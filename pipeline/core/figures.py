"""Numbers as people read them, on terminals and pages; numbers that are unknown are a dash."""

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_count(value: int) -> str:
    """A whole number with separators.

    >>> format_count(4355)
    '4,355'
    """
    return f"{value:,}"


def abbreviate_count(value: float) -> str:
    """A count for a headline: exact below a million.

    >>> abbreviate_count(999_999), abbreviate_count(4_778_364), abbreviate_count(26_300_000_000)
    ('999,999', '4.78 M', '26.3 G')
    """
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {unit}"
    return f"{value:,.0f}"


def format_bytes(size: float) -> str:
    """A size in decimal units.

    >>> format_bytes(999), format_bytes(16_013_598), format_bytes(154.24e9)
    ('999 B', '16.0 MB', '154.2 GB')
    """
    if size < 1000:
        return f"{size:,.0f} B"
    unit = 0
    while size >= 999.95 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:,.1f} {_BYTE_UNITS[unit]}"


def format_percent(part: float, whole: float) -> str:
    """A share.

    >>> format_percent(1, 3), format_percent(1, 100_000), format_percent(5, 5), format_percent(0, 0)
    ('33.3 %', '< 0.1 %', '100.0 %', '-')
    """
    if not whole:
        return "-"
    share = 100 * part / whole
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"
