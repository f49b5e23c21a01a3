"""Detectors and filters of other packages: a package that was never imported here brings one by an
entry point; what is refused, and how it is named."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.config.filters import CustomFilterConfig
from pipeline.config.prep import DetectorConfig
from pipeline.core.errors import ConfigError, FunctionError
from pipeline.filters.custom_functions import installed_filters, load_custom_filters
from pipeline.runs import layout
from pipeline.screening.detectors.catalogue import DetectorEntry
from pipeline.screening.detectors.plug_ins import (
    CustomDetector,
    find_custom_detectors,
    load_detector,
    load_installed_detectors,
)
from tests.forked import Ended
from tests.pipeline.plugins import prep_with

REPOSITORY = Path(__file__).resolve().parents[4]
CODE = '''
from collections.abc import Iterator

import pyarrow as pa

from acme_rules.letters import share_of_capitals
from pipeline.screening.detectors.catalogue import Attribute
from pipeline.screening.evidence import Finding


class Loud:
    """Documents in capitals."""

    kinds = ("capitals",)
    attributes = (Attribute("share", "number", "share of capitals among the letters"),)

    def __init__(self, *, least: float = 0.5) -> None:
        self.least = least

    def detect(self, batch: pa.RecordBatch) -> Iterator[Finding]:
        for row, text in enumerate(batch["text"].to_pylist()):
            share = share_of_capitals(text)
            if share >= self.least:
                yield Finding(
                    row=row, kind="capitals", target="loud", seen=text, attributes={"share": share}
                )


def short(text, meta):
    return len(text) > 5
'''
HELPER = """
def share_of_capitals(text):
    letters = [c for c in text if c.isalpha()]
    return round(sum(map(str.isupper, letters)) / max(1, len(letters)), 3)
"""
ENTRY_POINTS = """
[wafermill.detectors]
loud = acme_rules:Loud
[wafermill.filters]
short = acme_rules:short
"""
POLICY = """
version: 1
rules:
  - {id: too-loud, when: {loud.share: ">=0.9"}, decision: drop, reason: "{loud.share} in capitals"}
"""

Site = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Makes a directory as pip does, with the package `acme_rules` of the distribution
    `acme-rules`."""

    def make(code: str = CODE, entry_points: str = ENTRY_POINTS, name: str = "site") -> Path:
        directory = tmp_path / name
        package, about = directory / "acme_rules", directory / "acme_rules-1.2.dist-info"
        package.mkdir(parents=True)
        about.mkdir()
        (package / "__init__.py").write_text(code)
        (package / "letters.py").write_text(HELPER)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rules\nVersion: 1.2\n")
        (about / "entry_points.txt").write_text(entry_points)
        forget()
        return directory

    return make


WORDS = ("screen", "web.jsonl", "--json", "--policy", "policy.yaml",
         "--set", "read.task_bytes=1024", "--set", "clean.min_length=0")  # fmt: skip


def forget() -> None:
    """What this process imported of the package, and found installed."""
    load_installed_detectors.cache_clear()
    installed_filters.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] == "acme_rules"]:
        del sys.modules[module]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing of it is left for the tests that this process runs afterwards."""
    yield
    forget()


def test_a_package_brings_a_detector(
    site: Site, tmp_path: Path, prep: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker process finds the same as this one; a change of its code runs it again, and nothing
    before."""
    place = site()
    texts = [f"{'LOUD WORDS' if n % 3 == 0 else 'Quiet words'} number {n} " * 8 for n in range(40)]
    texts += ["ALL OF THIS IS LOUD " * n for n in range(4, 8)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "policy.yaml").write_text(POLICY)
    one, two = tmp_path / "one", tmp_path / "two"
    ended = prep_with(place, tmp_path, *WORDS, "--out", "two", "--workers", 1)
    assert ended.code == 0, ended.err
    monkeypatch.chdir(tmp_path)

    def screen(*options: object) -> Ended:
        forget()
        return prep(*WORDS, "--out", "one", "--workers", 0, *options)

    with monkeypatch.context() as installed:
        installed.syspath_prepend(place)
        ended = screen()
        assert ended.code == 0, ended.err
        part = "evidence.parquet/000000.parquet"
        assert (one / part).read_bytes() == (two / part).read_bytes()
        evidence = pq.read_table(one / layout.EVIDENCE).to_pylist()
        loud = [row for row in evidence if row["detector"] == "loud"]
        assert len(loud) == 18
        assert {row["evidence_id"].rpartition("-")[2] for row in loud} == {"d0"}
        dropped = pq.read_table(one / layout.DECISIONS).to_pylist()
        reasons = [(row["rule"], row["reason"]) for row in dropped]
        assert reasons == [("too-loud", "1 in capitals")] * 4
        stage = json.loads((one / "manifests/custom_detectors.json").read_bytes())
        assert len(stage["tasks"]) > 1
        [about] = stage["fields"]["settings"].values()
        assert (about["distribution"], about["version"]) == ("acme-rules", "1.2")
        assert len(about["code_hash"]) == 32 and about["settings"] == {}

        assert "custom_detectors" in json.loads(screen().out)["reused"]
        helper = place / "acme_rules/letters.py"
        helper.write_text(helper.read_text().replace("isupper", "islower"))
        os.utime(helper, (1, 1))  # compiled files of the same second and size count otherwise
        named = json.dumps([{"name": "loud", "settings": {"least": 0.9}}])
        changed = screen("--set", f"screen.detectors={named}")
        assert changed.code == 0, changed.err
        answer = json.loads(changed.out)
        assert "screen" in answer["reused"] and "custom_detectors" not in answer["reused"]
        counts = [row["count"] for row in answer["evidence"] if row["detector"] == "loud"]
        assert counts == [26]

    gone = screen()
    assert gone.code == ConfigError.exit_code
    assert "rules.0.when.loud.share: no such detector" in gone.err


Find = Callable[..., tuple[CustomDetector, ...]]


@pytest.fixture
def find(site: Site, monkeypatch: pytest.MonkeyPatch) -> Find:
    """The detectors of a config, of a package with this code and these entry points."""

    def load(config: dict[str, Any], *of_policy: str, **package: str) -> Any:
        monkeypatch.syspath_prepend(site(**package))
        configs = [DetectorConfig(**config)] if config else []
        return find_custom_detectors(configs, of_policy)

    return load


def test_the_example_of_the_manual(find: Find) -> None:
    page = (REPOSITORY / "docs/extending.md").read_text("utf-8")
    code = page[page.index("## A detector") :].partition("```python\n")[2].partition("```")[0]
    [own] = find({"name": "loud", "settings": {"least": 0.7}}, code=code)
    [share] = load_detector(own).attributes
    assert share.type == "number"


def test_settings_and_order(find: Find) -> None:
    """A detector that config and policy name is one, with the settings of the config."""
    [own] = find({"name": "loud", "settings": {"least": 0.7}}, "loud")
    assert (own.name, json.loads(own.settings)) == ("loud", {"least": 0.7})
    assert "loud of acme-rules 1.2, code " in own.describe()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "lout"}, r"detectors\.0\.name: lout: no installed .* did you mean 'loud'"),
        ({"name": "origin"}, r"detectors\.0\.name: origin: built in, and always used"),
        ({"name": "loud", "settings": {"lest": 1}},
         r"loud of acme-rules 1\.2: .*'lest'; did you mean 'least'\? \(it takes least\)"),
        ({"name": "loud", "settings": {"least": 1, "most": 2}}, "unexpected keyword .*'most'"),
    ],
)  # fmt: skip
def test_names_and_settings_are_checked(config: Any, message: str, find: Find) -> None:
    with pytest.raises(ConfigError, match=message):
        find(config)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nowhere\n", r"ModuleNotFoundError: No module named 'nowhere'"),
        ("def broken(:\n", r"acme_rules.__init__\.py:1: SyntaxError"),
        ("Loud = 1 / 0\n", r"acme_rules.__init__\.py:1: ZeroDivisionError"),
        ("Lout = 1\n", r"has no attribute 'Loud'"),
        (CODE.replace('kinds = ("capitals",)', ""), "has no `kinds`, a tuple"),
        (CODE.replace('kinds = ("capitals",)', 'kinds = "capitals"'), "has no `kinds`, a tuple"),
        (CODE.replace('(Attribute("share", "number"', '(("share", "number"'), "no `attributes`, a"),
        (CODE.replace('Attribute("share"', 'Attribute("seen"'), "that every detector has"),
        (CODE.replace("def detect", "def found"), "has no method `detect`"),
        (CODE.replace("self.least = least", "raise ValueError('hm')"),
         r"with the settings \{\}: .*__init__\.py:\d+: ValueError: hm"),
    ],
)  # fmt: skip
def test_a_broken_package_is_named(code: str, message: str, find: Find) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find({"name": "loud"}, code=code)
    assert "acme-rules 1.2" in str(caught.value) and "loud" in str(caught.value)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("other = nowhere_at_all:Loud", r"does not load: .*No module named 'nowhere_at_all'"),
        ("gopher = acme_rules:Loud", "gopher has the name of a built-in"),
        ("a-b = acme_rules:Loud", "a-b has a name that rules cannot ask about"),
        ("other = acme_rules:short", "is a function; expected a class"),
    ],
)
def test_entry_points_are_checked(point: str, message: str, find: Find) -> None:
    with pytest.raises(ConfigError, match=rf"acme-rules 1\.2: .*{message}"):
        find({"name": "loud"}, entry_points=f"[wafermill.detectors]\n{point}\n")


def test_a_missing_module_is_no_line_of_the_loader(find: Find) -> None:
    """Dask may load importlib_metadata, which takes over from the standard library's loader."""
    pytest.importorskip("importlib_metadata")
    with pytest.raises(ConfigError, match="does not load: ModuleNotFoundError: No module"):
        find({"name": "loud"}, entry_points="[wafermill.detectors]\nother = nowhere_at_all:Loud\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("yield Finding(", "yield dict(", "expected a Finding"),
        ("row=row", "row=7", "row: expected one below 1"),
        ("row=row", "row='0'", "row: '0' is of the wrong type"),
        ('kind="capitals"', 'kind="other"', "kind: expected one of capitals"),
        ('{"share": share}', '{"sharp": share}', "sharp is not declared; did you mean 'share'"),
        ('{"share": share}', '{"share": "1"}', "share: expected a value of the type number"),
        ("seen=text", "byte_offset=3, byte_length=9", "expected a place in the 4 bytes"),
        ("share = share_of", "share = 1 / 0 + share_of", r"__init__\.py:\d+: ZeroDivisionError"),
    ],
)
def test_findings_are_checked(old: str, new: str, message: str, find: Find) -> None:
    import pyarrow as pa

    from pipeline.core.ids import doc_key
    from pipeline.filters.custom_calls import document_batches
    from pipeline.stages.findings.filters import detect_with

    [own] = find({"name": "loud"}, code=CODE.replace(old, new))
    columns = {"doc_key": pa.array([doc_key("web", "a", 0)], pa.binary(16)), "source": ["web"],
               "path_id": pa.array([0], pa.uint32()), "line": pa.array([1], pa.uint64()),
               "byte_offset": pa.array([0], pa.uint64()), "licence": [""], "meta": ["{}"],
               "text": pa.array(["LOUD"], pa.large_string())}  # fmt: skip
    batches = list(document_batches(pa.table(columns), {0: "web/a.jsonl"}))
    with pytest.raises(FunctionError, match=message) as caught:
        detect_with(own, batches)
    assert "loud of acme-rules 1.2" in str(caught.value)
    assert "web/a.jsonl:1 (document " in str(caught.value)


def test_a_filter_by_its_entry_point(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(site())
    [own] = load_custom_filters([CustomFilterConfig(function="short")], tmp_path)
    assert (own.rule, own.location.distribution) == ("custom_short", "acme-rules 1.2")
    with pytest.raises(ConfigError, match=r"shot: expected MODULE:FUNCTION.*did you mean 'short'"):
        load_custom_filters([CustomFilterConfig(function="shot")], tmp_path)
    other = CustomFilterConfig(function="short", settings={"least": 3})
    with pytest.raises(ConfigError, match="there is no setting least"):
        load_custom_filters([other], tmp_path)


def test_a_built_in_detector_declares_everything() -> None:
    facts: dict[str, Any] = {"name": "x", "finds": "x", "kinds": ("x",), "attributes": (),
                             "needs": "nothing", "quotes": "text"}  # fmt: skip
    assert DetectorEntry(**facts).own_attributes[0].choices == ("x",)
    for name in facts:
        with pytest.raises(TypeError, match=name):
            DetectorEntry(**{key: value for key, value in facts.items() if key != name})
    with pytest.raises(TypeError, match="expected what it finds"):
        DetectorEntry(**{**facts, "kinds": ()})
