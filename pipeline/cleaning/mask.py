"""Masking of e-mail addresses, IP addresses and phone numbers.

What is found gives way to a value of its kind that can belong to nobody:

- `email`: a local part of up to 64 of the characters that RFC 5322 allows unquoted, an at sign, and
  a domain of letters, digits and hyphens with a dot in it; becomes `email@example.com` (RFC 2606).
- `ip`: a public IPv4 or IPv6 address in its usual notation, valid and global as `ipaddress` says
  (IPv6: in 2000::/3, so that code such as `a::b` is none); becomes `192.0.2.1` (RFC 5737) or
  `2001:db8::1` (RFC 3849). Private, reserved and documentation addresses stay.
- `phone`: a number of seven digits and more that Google's libphonenumber finds with strict grouping
  (`phonenumbers`): with a country code, or as written inside one of the given regions; becomes
  `555-0100`, which the North American plan keeps for fiction.

Texts without candidates are told apart by a scan over the whole array and are not copied one by
one.

Limits: a version number such as 1.2.3.4 is an address, and ten digits in a row can be a phone
number; names, postal addresses and other identifiers are not looked for.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.errors import ConfigError

Kind = Literal["email", "ip", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EMAIL, IPV4, IPV6, PHONE = "email@example.com", "192.0.2.1", "2001:db8::1", "555-0100"
"""What stands in the masked text."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = re.compile(rf"{_ATOM}+(?:\.{_ATOM}+)*\Z")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.)+[A-Za-z][A-Za-z0-9-]{1,62}")
_MOST_LOCAL, _MOST_DOMAIN = 64, 253
_IPV4 = r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.[0-9])"
_IPV6 = r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])"
_ADDRESS = re.compile(f"{_IPV6}|{_IPV4}")
_DOTTED = re.compile(_IPV4)
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_DIGITS = 7

_SCANS = {
    "email": r"[A-Za-z0-9]@[A-Za-z0-9]|[!#$%&'*+/=?^_`{|}~-]@[A-Za-z0-9]",
    "ip": r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|:[0-9A-Fa-f]{0,4}:",
    "phone": r"\p{Nd}(?:[^\p{Nd}\n]{0,4}\p{Nd}){6}",
}
"""What a text with a candidate holds, for RE2."""
_NUMBER = re.compile(r"\d(?:[^\d\n]{0,4}\d){6,}")
_DIGIT_BEFORE, _DIGIT_BEHIND = re.compile(r"\d[.,]?\Z"), re.compile(r"[.,]?\d")
_AROUND = 16
"""Characters around a run of digits that the library is shown, for signs and brackets."""

Spans = Iterator[tuple[int, int, str]]


def mask_texts(
    texts: pa.Array, kinds: Sequence[Kind], regions: Sequence[str] = ()
) -> tuple[pa.LargeStringArray, npt.NDArray[np.uint32]]:
    """N texts with what these kinds name masked, and how often, (N, 3) uint32 as `KINDS`.

    regions: two-letter codes of the countries whose numbers are found without a country code.
    Raises as `check_masks`.
    """
    finders = _finders(kinds, regions)
    counts = np.zeros((len(texts), len(KINDS)), np.uint32)
    masked = texts.cast(pa.large_string())
    for kind, find in finders.items():
        candidates = pc.match_substring_regex(masked, _SCANS[kind])
        rows = np.flatnonzero(candidates.to_numpy(zero_copy_only=False))
        changed: dict[int, str] = {}
        for row in rows.tolist():
            text, count = _replace(masked[row].as_py(), find)
            if count:
                changed[row], counts[row, KINDS.index(kind)] = text, count
        masked = _with(masked, changed)
    return masked, counts


def check_masks(kinds: Sequence[Kind], regions: Sequence[str]) -> None:
    """Raises ConfigError when `phone` needs a library that is not installed, and for a region that
    is unknown or of no use."""
    if "phone" not in kinds:
        if regions:
            raise ConfigError("clean.phone_regions: clean.mask does not name phone")
        return
    supported = _phonenumbers().SUPPORTED_REGIONS
    for region in regions:
        if region not in supported:
            raise ConfigError(
                f"clean.phone_regions: {region}: expected country codes such as US or EG"
            )


def read_mask_versions(kinds: Sequence[Kind]) -> dict[str, str]:
    """The versions that the answers depend on."""
    return {"phonenumbers": _phonenumbers().__version__} if "phone" in kinds else {}


def _finders(kinds: Sequence[Kind], regions: Sequence[str]) -> dict[Kind, Callable[[str], Spans]]:
    """In the order of KINDS, so that an address is not taken for a number."""
    check_masks(kinds, regions)
    finders: dict[Kind, Callable[[str], Spans]] = {
        "email": _emails,
        "ip": _addresses,
        "phone": lambda text: _phones(text, regions),
    }
    return {kind: find for kind, find in finders.items() if kind in kinds}


def _replace(text: str, find: Callable[[str], Spans]) -> tuple[str, int]:
    pieces, position, count = [], 0, 0
    for start, end, instead in find(text):
        if text[start:end] != instead:
            pieces += [text[position:start], instead]
            position, count = end, count + 1
    return "".join([*pieces, text[position:]]), count


def _with(texts: pa.Array, changed: dict[int, str]) -> pa.Array:
    if not changed:
        return texts
    mask = np.zeros(len(texts), np.bool_)
    mask[list(changed)] = True
    return pc.replace_with_mask(
        texts, pa.array(mask), pa.array(list(changed.values()), pa.large_string())
    )


def _emails(text: str) -> Spans:
    """From every at sign, outwards, so that no text takes long."""
    position, at = 0, text.find("@")
    while at >= 0:
        before = text[max(position, at - _MOST_LOCAL) : at]
        local = _LOCAL.search(before)
        domain = _DOMAIN.match(text, at + 1, at + 1 + _MOST_DOMAIN) if local else None
        if local and domain:
            position = domain.end()
            yield at - len(local[0]), position, EMAIL
        at = text.find("@", max(at + 1, position))


def _addresses(text: str) -> Spans:
    for match in _ADDRESS.finditer(text):
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            continue
        if not address.is_global:
            continue
        if address.version == 4:
            yield match.start(), match.end(), IPV4
        elif address in _GLOBAL_UNICAST:
            yield match.start(), match.end(), IPV6


def _phones(text: str, regions: Sequence[str]) -> Spans:
    """Only where there are enough digits close together; a number stands on one line."""
    for match in _NUMBER.finditer(text):
        start = max(text.rfind("\n", 0, match.start()) + 1, match.start() - _AROUND)
        end = text.find("\n", match.end(), match.end() + _AROUND)
        context = text[start : end if end >= 0 else match.end() + _AROUND]
        for first, last in _numbers(context, regions):
            if start + last > match.start() and start + first < match.end():
                yield start + first, start + last, PHONE


def _numbers(context: str, regions: Sequence[str]) -> list[tuple[int, int]]:
    """Where the numbers stand, ascending; what an earlier region finds stays."""
    library = _phonenumbers()
    used = bytearray(len(context))
    for address in _DOTTED.finditer(context):
        used[slice(*address.span())] = b"x" * len(address[0])
    spans: list[tuple[int, int]] = []
    for region in regions or (None,):
        for match in library.PhoneNumberMatcher(
            context, region, leniency=library.Leniency.STRICT_GROUPING
        ):
            span = (match.start, match.end)
            digits = sum(c.isdecimal() for c in match.raw_string)
            free = not any(used[slice(*span)])
            if digits >= _DIGITS and free and not _is_decimal(context, *span):
                used[slice(*span)] = b"x" * len(match.raw_string)
                spans.append(span)
    return sorted(spans)


def _is_decimal(text: str, start: int, end: int) -> bool:
    """Whether more digits stand before or behind, a point or comma between them or not."""
    before = _DIGIT_BEFORE.search(text, max(0, start - 2), start)
    return bool(before or _DIGIT_BEHIND.match(text, end))


def _phonenumbers() -> Any:
    try:
        import phonenumbers
    except ImportError:
        raise ConfigError(
            "clean.mask: phone needs phonenumbers, which is not installed; "
            "pip install 'wafermill[pii]'"
        ) from None
    return phonenumbers
