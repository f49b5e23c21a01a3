"""What captured signals say of one address: pure functions of captured text.

robots.txt by Protego (RFC 9309), with Content-Usage (IETF draft-ietf-aipref-attach) and
Content-Signal lines; TDMRep; `noai` and `noimageai`; ai.txt. The longest matching path wins.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pipeline.screening.detectors.captures import Capture

AI_CRAWLERS = (
    "AI2Bot", "Amazonbot", "anthropic-ai", "Applebot-Extended", "Bytespider", "CCBot", "ClaudeBot",
    "cohere-ai", "cohere-training-data-crawler", "Diffbot", "FacebookBot", "Google-Extended",
    "GPTBot", "ImagesiftBot", "img2dataset", "Meta-ExternalAgent", "omgili", "PanguBot", "Timpibot",
)  # fmt: skip
"""User agents under which pages are taken for training sets, as operators name them."""

MOST_BYTES = 500 * 1024
"""Of a body that are read: RFC 9309 §2.5 asks for no less of robots.txt."""

_UNREACHABLE = range(500, 600)
_USAGE_KEYS = ("train-ai", "ai", "bots")
_META = re.compile(r"<meta\b([^>]{1,2000})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"(name|content)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))", re.IGNORECASE
)
_TRAINING = re.compile(r"^[ \t]*training[ \t]*:[ \t]*(\w+)", re.IGNORECASE | re.MULTILINE)
_AGENT_LINE = re.compile(r"^[ \t]*user[- ]?agent[ \t:]+([^#\s]+)", re.IGNORECASE | re.MULTILINE)
_RESERVED, _ALLOWED = "reserved", "allowed"
_AI_TXT_ANSWERS = ("deny", "disallow", "no", "allow", "yes")


class Signal(NamedTuple):
    """What one signal says. status: reserved or allowed; agents, policy: "" where not known."""

    signal: str
    status: str
    agents: str = ""
    policy: str = ""


def signals_of(capture: Capture, url: str, agents: Sequence[str]) -> list[Signal]:
    """What a capture says of an address on its host; robots.txt that refuses nothing, nothing."""
    if capture.kind == "robots":
        return [*_robots(capture, url, agents), *_usage_in_robots(capture.body, url, agents)]
    if capture.kind == "tdmrep":
        return _tdmrep(capture.body[:MOST_BYTES], url)
    if capture.kind == "ai.txt":
        return _ai_txt(capture.body[:MOST_BYTES], url, agents)
    if capture.url and not is_same_page(capture.url, url):
        return []
    text = (capture.value or capture.body)[:MOST_BYTES]
    lines = (line.partition(":")[::2] for line in text.splitlines())
    return _of_fields(capture.kind, _meta_tags(text) if "<" in text else lines)


def is_same_page(one: str, other: str) -> bool:
    """Whether two addresses differ in scheme or fragment at most."""
    return _page(one) == _page(other)


def matches(pattern: str, path: str) -> bool:
    """Whether a path begins as a pattern of RFC 9309 §2.2.3 says: `*` any characters, `$` the end.

    >>> matches("/a/*.pdf$", "/a/b/c.pdf"), matches("/a/*.pdf$", "/a/c.pdf?x"), matches("/a", "/ab")
    (True, False, True)
    """
    first, *rest = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    place, ends = len(first), pattern.endswith("$")
    for number, part in enumerate(rest, 1):
        if ends and number == len(rest):
            return path.endswith(part) and len(path) - len(part) >= place
        found = path.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return not ends or place == len(path)


def _robots(capture: Capture, url: str, agents: Sequence[str]) -> list[Signal]:
    """5xx counts as a refusal of everything, 4xx as no file (RFC 9309 §2.3.1)."""
    if capture.status in _UNREACHABLE:
        return [Signal("robots", _RESERVED, "*")]
    if capture.status is not None and capture.status >= 400:
        return []
    return _refusals("robots", capture.body[:MOST_BYTES], url, agents)


def _refusals(signal: str, body: str, url: str, agents: Sequence[str]) -> list[Signal]:
    rules = _protego(body)
    refused = list[str]()
    for alike in _alike(body, tuple(agents)):
        if not rules.can_fetch(url, alike[0]):
            refused += alike
    if not refused:
        return []
    every = len(refused) == len(agents)
    return [Signal(signal, _RESERVED, "*" if every else ", ".join(sorted(refused, key=str.lower)))]


@lru_cache(maxsize=256)
def _alike(body: str, agents: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Agents in groups: each that the file may name by itself, and all others together."""
    named = {found[1].lower().replace("*", "") for found in _AGENT_LINE.finditer(body)} - {""}
    alone = [agent for agent in agents if any(name in agent.lower() for name in named)]
    others = tuple(agent for agent in agents if agent not in alone)
    return (*((agent,) for agent in alone), *([others] if others else []))


@lru_cache(maxsize=256)
def _protego(body: str) -> Any:
    from protego import Protego

    return Protego.parse(body)


def _usage_in_robots(body: str, url: str, agents: Sequence[str]) -> Iterator[Signal]:
    groups = _usage_groups(body[:MOST_BYTES])
    path = _path(url)
    for signal in ("content-usage", "content-signal"):
        applying = {agent.lower() if agent.lower() in groups else "*" for agent in agents}
        said = {
            _longest(((r[1], r[2]) for r in groups.get(agent, ()) if r[0] == signal), path)
            for agent in applying
        }
        if "n" in said or "y" in said:
            yield Signal(signal, _RESERVED if "n" in said else _ALLOWED)


@lru_cache(maxsize=256)
def _usage_groups(body: str) -> dict[str, list[tuple[str, str, str]]]:
    """Agent in lower case to (field, path, y or n) of its groups."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    agents: list[str] = []
    begun = False
    for line in body.splitlines():
        name, colon, value = line.partition("#")[0].partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon:
            continue
        if name == "user-agent":
            agents = [*([] if begun else agents), value.lower()]
            begun = False
            groups.setdefault(value.lower(), [])
            continue
        begun = True
        if name in ("content-usage", "content-signal"):
            path, expression = _path_and_rest(value)
            if answer := _answer(name, expression):
                for agent in agents:
                    groups[agent].append((name, path, answer))
    return groups


def _path_and_rest(value: str) -> tuple[str, str]:
    if not value.startswith("/"):
        return "/", value
    path, *rest = value.split(None, 1)
    return path, rest[0] if rest else ""


def _answer(field: str, expression: str) -> str:
    """y or n for training, from a dictionary of preferences; "" where it says nothing of it."""
    said = {}
    for part in expression.split(","):
        key, _, value = part.partition("=")
        said[key.strip().lower()] = value.split(";")[0].strip().lower()
    keys = _USAGE_KEYS if field == "content-usage" else ("ai-train",)
    answer = next((said[key] for key in keys if key in said), "")
    return {"n": "n", "no": "n", "y": "y", "yes": "y"}.get(answer, "")


def _longest(rules: Iterable[tuple[str, str]], path: str) -> str:
    """The answer of the longest pattern that matches; of equal ones `n`."""
    found = [(len(pattern), said) for pattern, said in rules if matches(unquote(pattern), path)]
    return min(found, key=lambda rule: (-rule[0], rule[1]), default=(0, ""))[1]


def _tdmrep(body: str, url: str) -> list[Signal]:
    """A file at /.well-known/tdmrep.json: a list of locations with tdm-reservation 0 or 1."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    path = _path(url)
    rules = [r for r in (value if isinstance(value, list) else [value]) if isinstance(r, dict)]
    matching = [
        (len(location), rule)
        for rule in rules
        if isinstance(location := rule.get("location"), str) and matches(unquote(location), path)
    ]
    if not matching:
        return []
    rule = max(matching, key=lambda found: found[0])[1]
    return _tdm("tdmrep", str(rule.get("tdm-reservation")), str(rule.get("tdm-policy") or ""))


def _tdm(signal: str, reservation: str, policy: str) -> list[Signal]:
    status = {"1": _RESERVED, "0": _ALLOWED}.get(reservation.strip())
    return [Signal(signal, status, policy=policy.strip()[:200])] if status else []


def _ai_txt(body: str, url: str, agents: Sequence[str]) -> list[Signal]:
    """Rules as in robots.txt, or a line `Training: deny`."""
    if said := _TRAINING.search(body):
        answer = said[1].lower()
        status = _RESERVED if answer in ("deny", "disallow", "no") else _ALLOWED
        return [Signal("ai.txt", status)] if answer in _AI_TXT_ANSWERS else []
    return _refusals("ai.txt", body, url, agents)


def _of_fields(kind: str, fields: Iterable[tuple[str, str]]) -> list[Signal]:
    """Signals of header lines or meta tags, as (name, value)."""
    found: list[Signal] = []
    values = [(name.strip().lower(), value.strip()) for name, value in fields]
    policy = next((value for name, value in values if name == "tdm-policy"), "")
    for name, value in values:
        if name == "tdm-reservation":
            found += _tdm(f"tdm-{kind}", value, policy)
        elif name in ("robots", "x-robots-tag"):
            words = set(re.split(r"[\s,:;]+", value.lower()))
            found += [Signal(word, _RESERVED) for word in ("noai", "noimageai") if word in words]
        elif name in ("content-usage", "content-signal") and (answer := _answer(name, value)):
            found.append(Signal(name, _RESERVED if answer == "n" else _ALLOWED))
    return list(dict.fromkeys(found))


def _meta_tags(text: str) -> Iterator[tuple[str, str]]:
    for tag in _META.finditer(text):
        held = {m[1].lower(): m[2] or m[3] or m[4] or "" for m in _ATTRIBUTE.finditer(tag[1])}
        yield held.get("name", ""), held.get("content", "")


def _path(url: str) -> str:
    """Path and query of an address, without percent signs; "/" where it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "/"
    query = f"?{parts.query}" if parts.query else ""
    return unquote((parts.path or "/") + query)


def _page(url: str) -> tuple[str, str]:
    try:
        return (urlsplit(url).netloc.lower().rpartition("@")[2], _path(url))
    except ValueError:
        return url, ""
