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


def read_signals(capture: Capture, url: str, agents: Sequence[str]) -> list[Signal]:
    """What a capture says of an address on its host; robots.txt that refuses nothing, nothing."""
    if capture.kind == "robots":
        return [*_read_robots(capture, url, agents), *_read_usage(capture.body, url, agents)]
    if capture.kind == "tdmrep":
        return _read_tdmrep(capture.body[:MOST_BYTES], url)
    if capture.kind == "ai.txt":
        return _read_ai_txt(capture.body[:MOST_BYTES], url, agents)
    if capture.url and _find_page(capture.url) != _find_page(url):
        return []
    text = (capture.value or capture.body)[:MOST_BYTES]
    lines = (line.partition(":")[::2] for line in text.splitlines())
    return _read_fields(capture.kind, _list_meta_tags(text) if "<" in text else lines)


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
        start = path.find(part, place)
        if start < 0:
            return False
        place = start + len(part)
    return not ends or place == len(path)


def _read_robots(capture: Capture, url: str, agents: Sequence[str]) -> list[Signal]:
    """5xx counts as a refusal of everything, 4xx as no file (RFC 9309 §2.3.1)."""
    if capture.status in _UNREACHABLE:
        return [Signal("robots", _RESERVED, "*")]
    if capture.status is not None and capture.status >= 400:
        return []
    return _find_refusals("robots", capture.body[:MOST_BYTES], url, agents)


def _find_refusals(signal: str, body: str, url: str, agents: Sequence[str]) -> list[Signal]:
    rules = _parse_robots(body)
    refused = list[str]()
    for group in _group_agents(body, tuple(agents)):
        if not rules.can_fetch(url, group[0]):
            refused += group
    if not refused:
        return []
    every = len(refused) == len(agents)
    return [Signal(signal, _RESERVED, "*" if every else ", ".join(sorted(refused, key=str.lower)))]


@lru_cache(maxsize=256)
def _group_agents(body: str, agents: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Agents in groups: each that the file may name by itself, and all others together."""
    names = {line[1].lower().replace("*", "") for line in _AGENT_LINE.finditer(body)} - {""}
    alone = [agent for agent in agents if any(name in agent.lower() for name in names)]
    others = tuple(agent for agent in agents if agent not in alone)
    return (*((agent,) for agent in alone), *([others] if others else []))


@lru_cache(maxsize=256)
def _parse_robots(body: str) -> Any:
    from protego import Protego

    return Protego.parse(body)


def _read_usage(body: str, url: str, agents: Sequence[str]) -> Iterator[Signal]:
    groups = _parse_usage(body[:MOST_BYTES])
    path = _find_path(url)
    for signal in ("content-usage", "content-signal"):
        applying = {agent.lower() if agent.lower() in groups else "*" for agent in agents}
        answers = {
            _find_longest(((r[1], r[2]) for r in groups.get(agent, ()) if r[0] == signal), path)
            for agent in applying
        }
        if "n" in answers or "y" in answers:
            yield Signal(signal, _RESERVED if "n" in answers else _ALLOWED)


@lru_cache(maxsize=256)
def _parse_usage(body: str) -> dict[str, list[tuple[str, str, str]]]:
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
            path, expression = _split_path(value)
            if answer := _read_answer(name, expression):
                for agent in agents:
                    groups[agent].append((name, path, answer))
    return groups


def _split_path(value: str) -> tuple[str, str]:
    if not value.startswith("/"):
        return "/", value
    path, *rest = value.split(None, 1)
    return path, rest[0] if rest else ""


def _read_answer(field: str, expression: str) -> str:
    """y or n for training, from a dictionary of preferences; "" where it says nothing of it."""
    preferences = {}
    for part in expression.split(","):
        key, _, value = part.partition("=")
        preferences[key.strip().lower()] = value.split(";")[0].strip().lower()
    keys = _USAGE_KEYS if field == "content-usage" else ("ai-train",)
    answer = next((preferences[key] for key in keys if key in preferences), "")
    return {"n": "n", "no": "n", "y": "y", "yes": "y"}.get(answer, "")


def _find_longest(rules: Iterable[tuple[str, str]], path: str) -> str:
    """The answer of the longest pattern that matches; of equal ones `n`."""
    matching = [
        (len(pattern), answer) for pattern, answer in rules if matches(unquote(pattern), path)
    ]
    return min(matching, key=lambda rule: (-rule[0], rule[1]), default=(0, ""))[1]


def _read_tdmrep(body: str, url: str) -> list[Signal]:
    """A file at /.well-known/tdmrep.json: a list of locations with tdm-reservation 0 or 1."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return []
    path = _find_path(url)
    rules = [r for r in (value if isinstance(value, list) else [value]) if isinstance(r, dict)]
    matching = [
        (len(location), rule)
        for rule in rules
        if isinstance(location := rule.get("location"), str) and matches(unquote(location), path)
    ]
    if not matching:
        return []
    rule = max(matching, key=lambda pair: pair[0])[1]
    return _make_tdm_signal(
        "tdmrep", str(rule.get("tdm-reservation")), str(rule.get("tdm-policy") or "")
    )


def _make_tdm_signal(signal: str, reservation: str, policy: str) -> list[Signal]:
    status = {"1": _RESERVED, "0": _ALLOWED}.get(reservation.strip())
    return [Signal(signal, status, policy=policy.strip()[:200])] if status else []


def _read_ai_txt(body: str, url: str, agents: Sequence[str]) -> list[Signal]:
    """Rules as in robots.txt, or a line `Training: deny`."""
    if match := _TRAINING.search(body):
        answer = match[1].lower()
        status = _RESERVED if answer in ("deny", "disallow", "no") else _ALLOWED
        return [Signal("ai.txt", status)] if answer in _AI_TXT_ANSWERS else []
    return _find_refusals("ai.txt", body, url, agents)


def _read_fields(kind: str, fields: Iterable[tuple[str, str]]) -> list[Signal]:
    """Signals of header lines or meta tags, as (name, value)."""
    signals: list[Signal] = []
    values = [(name.strip().lower(), value.strip()) for name, value in fields]
    policy = next((value for name, value in values if name == "tdm-policy"), "")
    for name, value in values:
        if name == "tdm-reservation":
            signals += _make_tdm_signal(f"tdm-{kind}", value, policy)
        elif name in ("robots", "x-robots-tag"):
            words = set(re.split(r"[\s,:;]+", value.lower()))
            signals += [Signal(word, _RESERVED) for word in ("noai", "noimageai") if word in words]
        elif name in ("content-usage", "content-signal") and (answer := _read_answer(name, value)):
            signals.append(Signal(name, _RESERVED if answer == "n" else _ALLOWED))
    return list(dict.fromkeys(signals))


def _list_meta_tags(text: str) -> Iterator[tuple[str, str]]:
    for tag in _META.finditer(text):
        attributes = {m[1].lower(): m[2] or m[3] or m[4] or "" for m in _ATTRIBUTE.finditer(tag[1])}
        yield attributes.get("name", ""), attributes.get("content", "")


def _find_path(url: str) -> str:
    """Path and query of an address, without percent signs; "/" where it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "/"
    query = f"?{parts.query}" if parts.query else ""
    return unquote((parts.path or "/") + query)


def _find_page(url: str) -> tuple[str, str]:
    """What addresses share that differ in scheme or fragment at most."""
    try:
        return (urlsplit(url).netloc.lower().rpartition("@")[2], _find_path(url))
    except ValueError:
        return url, ""
