"""Hosts and host patterns, look-alikes among them."""

import pytest

from pipeline.screening.detectors.lists import HostPatterns, find_addresses, normalise_host

HOSTS = HostPatterns([("libgen.*", "any"), ("gen.lib.rus.ec", "exact"), ("b-ok.cc", "exact")])


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("libgen.is", "any"),
        ("www.libgen.rs", "any"),
        ("libgen.co.uk", "any"),
        ("a.b.libgen.com.br", "any"),
        ("gen.lib.rus.ec", "exact"),
        ("m.gen.lib.rus.ec", "exact"),
        ("b-ok.cc", "exact"),
        ("notlibgen.is", None),
        ("libgen.is.example.org", None),
        ("notlibgen.is.example.org", None),
        ("libgen.example.org", None),
        ("libgen-news.example", None),
        ("lib.rus.ec", None),
        ("xgen.lib.rus.ec", None),
        ("b-ok.cc.example", None),
        ("ab-ok.cc", None),
        ("b-ok.org", None),
        ("libgen.py", None),
        ("libgen.html", None),
    ],
)
def test_labels_are_compared_and_never_substrings(host: str, expected: str | None) -> None:
    assert HOSTS.find(host) == expected


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("https://libgen.is/book", ["libgen.is"]),
        ("HTTPS://WWW.LIBGEN.IS", ["www.libgen.is"]),
        ("https://libgen.is:8443/x", ["libgen.is"]),
        ("https://libgen.is@example.org/x", ["example.org"]),
        ("https://user:pass@libgen.is/x", ["libgen.is"]),
        ("https://example.org/libgen.is", ["example.org"]),
        ("https://example.org/?u=http://libgen.is", ["example.org"]),
        ("https://example.org/#http://libgen.is", ["example.org"]),
        ("https://web.archive.org/web/2020/http://libgen.is/x", ["web.archive.org", "libgen.is"]),
        ("https://libgen\N{FULLWIDTH FULL STOP}is/x", ["libgen.is"]),
        ("//libgen.is/x", ["libgen.is"]),
        ("libgen.rs", ["libgen.rs"]),
        ("libgen.rs/book/index.php", ["libgen.rs"]),
        ("an article on libgen.rs", []),
        ("Vol. 3", []),
        ("http://[::1]/x http://127.0.0.1/ http:///x", []),
    ],
)
def test_hosts_of_addresses(text: str, hosts: list[str]) -> None:
    assert [host for host, _ in find_addresses(text)] == hosts


def test_two_labels_of_an_ending_are_guessed() -> None:
    """A common second label before a country of two letters, and no list of public suffixes."""
    assert (HOSTS.find("libgen.com.br"), HOSTS.find("libgen.web.za")) == ("any", None)


def test_hosts_in_other_scripts_are_compared_as_they_are() -> None:
    hosts = HostPatterns([("xn--bcher-kva.example", 1)])
    assert [
        hosts.find(normalise_host(h) or "") for h in ("xn--bcher-kva.example", "bücher.example")
    ] == [
        1,
        None,
    ]


def test_a_long_host_is_none() -> None:
    assert normalise_host(".".join(["a" * 60] * 5)) is None
