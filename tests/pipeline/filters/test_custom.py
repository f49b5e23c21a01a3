"""Custom filters: what is refused before a run begins, what a function is given, and what it may
return."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config.filters import CustomFilterConfig
from pipeline.core.errors import ConfigError, FunctionError
from pipeline.core.ids import doc_key
from pipeline.filters.custom_calls import Verdict, document_batches, judge
from pipeline.filters.custom_functions import CustomFilter, load_custom_filters, load_function

KEEP = "def keep(text, meta, *, least=0.5, words=()):\n    return True\n"


def documents(*texts: str, line: int = 1) -> pa.Table:
    """A documents shard with what custom filters read of it."""
    count = len(texts)
    return pa.table(
        {
            "doc_key": pa.array([doc_key("web", "a", n) for n in range(count)], pa.binary(16)),
            "source": ["Wiki"] * count,
            "path_id": pa.array([3] * count, pa.uint32()),
            "line": pa.array([n + 1 if line else 0 for n in range(count)], pa.uint64()),
            "byte_offset": pa.array([n * 10 for n in range(count)], pa.uint64()),
            "licence": [""] * count,
            "meta": [json.dumps({"url": f"u{n}"}) for n in range(count)],
            "meta_year": pa.array(range(count), pa.int64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )


def load(base: Path, **entry: Any) -> CustomFilter:
    [own] = load_custom_filters((CustomFilterConfig(**entry),), base)
    return own


Ask = Callable[..., list[Verdict]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """What the function `f` of this code says of texts."""

    def judged(code: str, *texts: str, batch: bool = False, **settings: Any) -> list[Verdict]:
        (tmp_path / "f.py").write_text(code)
        own = load(tmp_path, function="f.py:f", batch=batch, settings=settings)
        return judge(own, list(document_batches(documents(*texts), {3: "web/a.jsonl"})))

    return judged


def test_what_a_function_may_say(ask: Ask) -> None:
    code = "def f(text, meta):\n    return {'a': True, 'b': False, 'c': '', 'd': 'no\\nd'}[text]\n"
    assert ask(code, "a", "b", "c", "d") == [None, "", None, "no\\nd"]
    numbers = "import numpy\ndef f(text, meta):\n    return numpy.mean([len(text)]) > 1\n"
    assert ask(numbers, "a", "bb") == ["", None]
    long = ask("def f(text, meta):\n    return text\n", "x" * 500, "\ud7ff\x1b[1m")
    assert [len(verdict or "") for verdict in long] == [201, len("\\ud7ff\\x1b[1m")]


@pytest.mark.parametrize(
    "returned",
    ["[True, False, True]", "['', 'bad', None]", "pa.array([True, False, None])",
     "pa.array(['', 'bad', None])", "numpy.array([True, False, True])",
     "pa.chunked_array([[True], [False, True]])"],
)  # fmt: skip
def test_what_a_function_may_say_of_a_batch(returned: str, ask: Ask) -> None:
    code = f"""
import numpy, pyarrow as pa
def f(batch):
    assert isinstance(batch, pa.RecordBatch)
    said = {returned}
    said = said.to_pylist() if hasattr(said, "to_pylist") else list(said)
    of = dict(zip("abc", said, strict=True))
    return [of[text] for text in batch["text"].to_pylist()]
"""
    assert ask(code, "a", "b", "c", batch=True)[1] in ("", "bad")
    assert ask(code, "a", "b", "c", batch=True)[::2] == [None, None]


def test_arrays_of_a_batch_are_taken_as_they_are(ask: Ask) -> None:
    code = "import pyarrow.compute as pc\ndef f(batch, *, not_this):\n    return {}\n"
    kept = "pc.not_equal(batch['text'], not_this)"
    assert ask(code.format(kept), "a", "b", batch=True, not_this="b") == [None, ""]
    why = "pc.if_else(pc.equal(batch['meta_year'], 1), 'old', None)"
    assert ask(code.format(why), "a", "b", batch=True, not_this="b") == [None, "old"]


def test_what_a_function_is_given(ask: Ask) -> None:
    code = "def f(text, meta, **settings):\n    return repr((text, meta, settings))[:190]\n"
    [said] = ask(code, "some", least=0.5)
    key = doc_key("web", "a", 0).hex()
    meta = {"key": key, "source": "Wiki", "path": "web/a.jsonl", "line": 1, "licence": "",
            "meta": {"url": "u0"}}  # fmt: skip
    assert said == repr(("some", meta, {"least": 0.5}))[:190]
    columns = "def f(batch):\n    return [' '.join(batch.schema.names)] * len(batch)\n"
    assert ask(columns, "x", batch=True) == ["key source path line licence meta meta_year text"]


def test_a_row_has_its_number() -> None:
    [batch] = document_batches(documents("a", "b", line=0), {3: "web/a.parquet"})
    assert batch["line"].to_pylist() == [0, 10]


def test_changing_what_it_is_given_does_no_harm(ask: Ask) -> None:
    code = """
def f(text, meta, *, words):
    said = "" if meta["meta"].get("url", "gone").startswith("u") and words == ["a"] else "changed"
    meta["meta"].clear()
    meta.clear()
    words.append("b")
    return said
"""
    assert ask(code, "a", "b", words=["a"]) == [None, None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", r"returned None \(NoneType\) for web/a\.jsonl:1 \(document [0-9a-f]{32}\); "
                        "expected True, False or a string"),
        ("return 1", r"returned 1 \(int\)"),
        ("return text.encode()", r"returned b'a' \(bytes\)"),
        ("raise ValueError('no\\x1b' + text)",
         r"failed on web/a\.jsonl:1 \(document .{32}\): .*f\.py:2: ValueError: no\\x1ba"),
        ("return meta['nothing']", r"f\.py:2: KeyError: 'nothing'"),
        ("raise SystemExit(3)", r"f\.py:2: SystemExit: 3"),
        ("import no_such_module", r"f\.py:2: ModuleNotFoundError: No module named"),
    ],
)  # fmt: skip
def test_failures_name_document_and_key(body: str, message: str, ask: Ask) -> None:
    with pytest.raises(FunctionError, match=rf"^filters\.custom\.0\.function: f \(.*{message}"):
        ask(f"def f(text, meta):\n    {body}\n", "a", "b")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [True]", r"returned 1 values for the 2 documents of web/a\.jsonl:1 .* to "),
        ("return True", r"returned True \(bool\) for web/a\.jsonl:1 .* expected an array"),
        ("return 'no'", r"returned 'no' \(str\) .* expected an array"),
        ("return [True, 7]", r"returned 7 \(int\) for web/a\.jsonl:2 "),
        ("assert 'b' not in batch['text'].to_pylist()",
         r"failed on web/a\.jsonl:2 \(document .{32}\): .*f\.py:2: AssertionError"),
        ("assert len(batch) < 2; return [True]", r"failed on web/a\.jsonl:1 .* to web/a\.jsonl:2 "),
    ],
)  # fmt: skip
def test_failures_in_batches_name_the_document(body: str, message: str, ask: Ask) -> None:
    body = body if "return" in body else f"{body}; return [True] * len(batch)"
    with pytest.raises(FunctionError, match=message):
        ask(f"def f(batch):\n    {body}\n", "a", "b", batch=True)


@pytest.mark.parametrize(
    "code",
    [
        "seen = set()\ndef f(text, meta):\n    new = text not in seen\n    seen.add(text)\n"
        "    return new\n",
        "import itertools\nn = itertools.count()\ndef f(text, meta):\n    return next(n) < 9\n",
        "import random\ndef f(text, meta):\n    return random.random() > 0.05\n",
        "import time\ndef f(text, meta):\n    return str(time.perf_counter_ns())\n",
        "last = []\ndef f(text, meta):\n    last.append(text)\n    return last[-2:-1] < [text]\n",
    ],
)
def test_a_function_that_is_not_pure_is_caught(code: str, ask: Ask) -> None:
    with pytest.raises(
        FunctionError, match=r"f .* is no pure function: of web/a\.jsonl:.* it said"
    ):
        ask(code, *(f"text {number}" for number in range(1000)))


def test_a_rare_change_of_mind_can_pass(ask: Ask) -> None:
    code = (
        "import collections\nasked = collections.Counter()\ndef f(text, meta):\n"
        "    asked[text] += 1\n    return not (text == 'text 7' and asked[text] > 1)\n"
    )
    assert ask(code, *(f"text {number}" for number in range(1000))) == [None] * 1000


def test_a_batch_that_is_judged_as_a_whole_is_caught(ask: Ask) -> None:
    code = (
        "def f(batch):\n    sizes = [len(t.as_py()) for t in batch['text']]\n"
        "    return [size * 2 > max(sizes) for size in sizes]\n"
    )
    with pytest.raises(FunctionError, match="no pure function"):
        ask(code, *["xx"] * 50, "x" * 3, *["xx"] * 500, "x" * 300, *["x"] * 17, batch=True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"function": "none.py:keep"}, r"custom\.0\.function: none\.py:keep: there is no file .*"),
        ({"function": "rule.py:keep"}, r"there is no file .* did you mean 'rules\.py'\?"),
        ({"function": "rules:keep"}, r"no module rules is on .*for the file next to the config "
                                     r"write rules\.py:FUNCTION"),
        ({"function": "no_such_module:keep"}, "no module no_such_module is on Python's path or in"),
        ({"function": "no_such.module:keep"}, r"no module no_such\.module is on Python's path"),
        ({"function": "zlib:crc32"}, "zlib has no Python file"),
        ({"function": "rules.py:kepp"}, r"rules\.py has no kepp; did you mean 'keep'\?"),
        ({"function": "rules.py:LEAST"}, "LEAST is a value of type float; expected a function"),
        ({"function": "rules.py:dumps"}, r"dumps is defined in .*json.*; name that file"),
        ({"function": "broken.py:f"}, r"broken\.py:f: .*broken\.py:2: SyntaxError: "),
        ({"function": "raises.py:f"}, r"raises\.py:3: ZeroDivisionError: "),
        ({"function": "rules.py:keep", "settings": {"leest": 1}},
         r"custom\.0: keep of .*: there is no setting leest; did you mean 'least'\? "
         r"\(it takes least, words\)"),
        ({"function": "rules.py:keep", "settings": {"text": 1}}, "there is no setting text"),
        ({"function": "rules.py:needs"}, r"settings\.most is missing \(it takes most\)"),
        ({"function": "rules.py:whole"}, r"takes 1 of the 2 .* def whole\(text, meta, \*, …\); for "
                                         "one that takes a batch write batch: true"),
        ({"function": "rules.py:nothing", "batch": True}, r"expected def nothing\(batch, \*, …\)"),
    ],
)  # fmt: skip
def test_refused_before_a_run_begins(
    entry: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.py").write_text(
        KEEP + "LEAST = 0.5\nfrom json import dumps\ndef needs(text, meta, *, most): ...\n"
        "def whole(batch): ...\ndef nothing(): ...\n"
    )
    (tmp_path / "broken.py").write_text("def f(text, meta):\n    return (\n")
    (tmp_path / "raises.py").write_text("def one():\n    return 1\nX = one() / 0\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **entry)


def test_names_must_differ(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(KEEP)
    entry = CustomFilterConfig(function="rules.py:keep")
    with pytest.raises(ConfigError, match=r"custom\.1\.function: .* has the name keep"):
        load_custom_filters((entry, entry), tmp_path)


def test_a_module_of_a_package_and_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from . import other\ndef keep(text, meta):\n    return other.WHY\n"
    for name, why in (("one", "first"), ("two", "second")):
        package = tmp_path / name / "rules_of_mine"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "other.py").write_text(f"WHY = {why!r}\n")
        (package / "quality.py").write_text(code)
        (tmp_path / name / "plain_rules.py").write_text(f"{KEEP}WHY = {why!r}\n")
    monkeypatch.chdir(tmp_path / "one")
    own = load(tmp_path, function="rules_of_mine.quality:keep")
    assert load_function(own)("", {}) == "first"
    first = load(tmp_path, function="plain_rules:keep")
    monkeypatch.chdir(tmp_path / "two")
    second = load(tmp_path, function="plain_rules:keep")
    assert [load_function(f).__globals__["WHY"] for f in (first, second)] == ["first", "second"]
    assert os.sep + "two" + os.sep in second.location.file


def test_the_file_that_was_hashed_is_the_one_that_runs(tmp_path: Path) -> None:
    """A change that a `.pyc` does not see, within a second, counts; one during a run is refused."""
    rules = tmp_path / "rules.py"
    found = []
    for why in ("one", "two"):
        rules.write_text(f"def f(text, meta):\n    return {why!r}\n")
        found.append(load(tmp_path, function="rules.py:f"))
        assert load_function(found[-1])("", {}) == why
    assert found[0].file_hash != found[1].file_hash
    load_function.__globals__["_module"].cache_clear()
    with pytest.raises(ConfigError, match="changed while the run was under way; run the same"):
        load_function(found[0])


def test_classes_and_decorated_functions(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(
        "from __future__ import annotations\nimport dataclasses, functools\n"
        "@dataclasses.dataclass\nclass Limit:\n    least: float\n"
        "    def __call__(self, text: str, meta: dict) -> bool:\n"
        "        return len(text) > self.least\n"
        "long_enough = Limit(3)\n"
        "@functools.cache\ndef size(text): return len(text)\n"
        "some = functools.partial(lambda text, meta, least: size(text) > least, least=3)\n"
    )
    for name in ("long_enough", "some"):
        own = load(tmp_path, function=f"rules.py:{name}")
        batches = list(document_batches(documents("ab", "abcd"), {3: "a"}))
        assert judge(own, batches) == ["", None]


@pytest.mark.parametrize("value", ["rules:", ":keep", "rules.py", "rules:a.b", "rules:1", "a b"])
def test_what_names_a_function(value: str) -> None:
    with pytest.raises(ValueError, match="expected MODULE:FUNCTION"):
        CustomFilterConfig(function=value)
