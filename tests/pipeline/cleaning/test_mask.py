"""What is masked and what is not, against plain readings of the documentation."""

import ipaddress
import re

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from pipeline.cleaning.mask import EMAIL, IPV4, IPV6, KINDS, PHONE, mask_texts
from pipeline.core.errors import ConfigError


def masked(text: str, *kinds: str, regions: tuple[str, ...] = ()) -> tuple[str, list[int]]:
    texts, counts = mask_texts(pa.array([text]), kinds, regions)  # type: ignore[arg-type]
    return texts[0].as_py(), counts[0].tolist()


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        ("write to ann.lee+news@mail.example.co.uk.", f"write to {EMAIL}.", 1),
        ("<o'neil@a-b.org>,x_y@q.de", f"<{EMAIL}>,{EMAIL}", 2),
        ("@user, a @ b.de, a@b, a@b.c, a@-b.de", "@user, a @ b.de, a@b, a@b.c, a@-b.de", 0),
        ("سلامann@site.com؟", f"سلام{EMAIL}؟", 1),
        ("a@b.de@c.fr", f"{EMAIL}@c.fr", 1),
        (f"already {EMAIL}", f"already {EMAIL}", 0),
    ],
)
def test_email(text: str, expected: str, count: int) -> None:
    assert masked(text, "email") == (expected, [count, 0, 0])


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        ("from 8.8.8.8, to 1.1.1.1.", f"from {IPV4}, to {IPV4}.", 2),
        ("10.0.0.1 192.168.1.1 127.0.0.1 192.0.2.1", "10.0.0.1 192.168.1.1 127.0.0.1 192.0.2.1", 0),
        ("256.8.8.8 8.8.8 8.8.8.8.8 v8.8.8.8", "256.8.8.8 8.8.8 8.8.8.8.8 v8.8.8.8", 0),
        ("8.8.8.8b 08.8.8.8", "8.8.8.8b 08.8.8.8", 0),
        ("[2606:4700::1111]:443", f"[{IPV6}]:443", 1),
        ("std::vector a::b 12:30:45", "std::vector a::b 12:30:45", 0),
        ("fe80::1 ::1 2001:db8::7", "fe80::1 ::1 2001:db8::7", 0),
        ("http://8.8.8.8:80/x", f"http://{IPV4}:80/x", 1),
    ],
)  # fmt: skip
def test_ip(text: str, expected: str, count: int) -> None:
    assert masked(text, "ip") == (expected, [0, count, 0])


@pytest.mark.parametrize(
    ("text", "regions", "expected", "count"),
    [
        ("call +44 20 7946 0958 now", (), f"call {PHONE} now", 1),
        ("call (212) 555-2368 now", (), "call (212) 555-2368 now", 0),
        ("call (212) 555-2368 now", ("US",), f"call {PHONE} now", 1),
        ("02 27350000 in Cairo", ("US", "EG"), f"{PHONE} in Cairo", 1),
        ("on 2024-01-02 10:11:12 pi is 3.141592653589", ("US",),
         "on 2024-01-02 10:11:12 pi is 3.141592653589", 0),
        ("host 10.20.30.40 and 1234567.8901", ("US",), "host 10.20.30.40 and 1234567.8901", 0),
        ("one +1 202 555 0143\ntwo +49 30 123456", (), f"one {PHONE}\ntwo {PHONE}", 2),
    ],
)  # fmt: skip
def test_phone(text: str, regions: tuple[str, ...], expected: str, count: int) -> None:
    pytest.importorskip("phonenumbers")
    assert masked(text, "phone", regions=regions) == (expected, [0, 0, count])


def test_arrays() -> None:
    texts = pa.array(["none", "x@y.de 8.8.8.8", "", "8.8.8.8 1.1.1.1"]).slice(1)
    found, counts = mask_texts(texts, ("ip", "email"))
    assert found.type == pa.large_string()
    assert found.to_pylist() == [f"{EMAIL} {IPV4}", "", f"{IPV4} {IPV4}"]
    assert counts.tolist() == [[1, 1, 0], [0, 0, 0], [0, 2, 0]]
    untouched, counts = mask_texts(texts, ())
    assert untouched.to_pylist() == texts.to_pylist()
    assert not counts.any()
    assert mask_texts(pa.array([], pa.string()), KINDS[:2])[1].shape == (0, 3)


PIECES = st.sampled_from(
    ["8.8.8.8", "10.0.0.1", "ann", "@", "x.de", "example.com", ".", "-", " ", "\n", "2606:4700::1",
     ":", "::", "1", "é", "+"]
)  # fmt: skip


@hypothesis.given(st.lists(PIECES, max_size=30).map("".join))
def test_masks_are_found_by_the_scan_and_stay(text: str) -> None:
    """No candidate is missed by the scan over the array; masking again changes nothing."""
    once, counts = masked(text, "email", "ip")
    assert masked(once, "email", "ip") == (once, [0, 0, 0])
    assert (counts[0] > 0) <= ("@" in text)
    for address in re.findall(r"(?<![\w.:])(?:[0-9]+\.){3}[0-9]+(?![\w:]|\.[0-9])", once):
        try:
            assert not ipaddress.ip_address(address).is_global
        except ValueError:
            continue


def test_no_text_takes_long() -> None:
    long = 200_000
    for text in ("a." * long, "a@" * long, "1." * long, ":" * long, "a@" + "b." * long):
        found, _ = mask_texts(pa.array([text]), ("email", "ip"))
        assert len(found) == 1
    pytest.importorskip("phonenumbers")
    numbers = "+1 212 555 2368 " * 4000
    assert masked(numbers, "phone") == (f"{PHONE} " * 4000, [0, 0, 4000])


def test_regions_and_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("phonenumbers")
    with pytest.raises(ConfigError, match=r"clean\.phone_regions: UK: expected country codes"):
        mask_texts(pa.array(["x"]), ("phone",), ("US", "UK"))
    import sys

    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    with pytest.raises(ConfigError, match=r"pip install 'wafermill\[pii\]'"):
        mask_texts(pa.array(["x"]), ("phone",))
    assert np.array_equal(mask_texts(pa.array(["x"]), ("email",))[1], [[0, 0, 0]])
