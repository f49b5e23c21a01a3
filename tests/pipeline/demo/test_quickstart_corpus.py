"""The built-in corpus: size, mix, determinism, reuse, rebuilding when damaged, planted records."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ftfy
import pytest

from pipeline.core import zstd
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_file
from pipeline.demo import planted, quickstart

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache root that holds a collected corpus."""
    root = tmp_path_factory.mktemp("cache")
    quickstart.collect(root)
    return root


@pytest.fixture
def corpus(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The corpus directory, found without reading a package again."""
    monkeypatch.setattr(quickstart, "_gather", lambda: pytest.fail("collected a second time"))
    return quickstart.collect(cache)


def raw_lines(shard: Path) -> list[bytes]:
    return zstd.decompress(shard.read_bytes()).split(b"\n")[:-1]


def records(directory: Path) -> list[dict[str, Any]]:
    shards = sorted(directory.glob("shard-*.jsonl.zst"))
    return [json.loads(line) for shard in shards for line in raw_lines(shard)]


def file_hashes(directory: Path) -> dict[str, str]:
    return {path.name: hash_file(path) for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def gathered(cache: Path) -> list[quickstart._Record]:
    """What the corpus was made from."""
    lines = (line for shard in sorted(cache.rglob("shard-*.zst")) for line in raw_lines(shard))
    pairs = ((json.loads(line), line) for line in lines)
    return [
        quickstart._Record(record["meta"]["pile_set_name"], len(record["text"].encode()), line)
        for record, line in pairs
    ]


def test_size_and_mix(corpus: Path) -> None:
    found = records(corpus)
    sizes: Counter[str] = Counter()
    for record in found:
        sizes[record["meta"]["pile_set_name"]] += len(record["text"].encode())
    assert 12_000_000 <= sum(sizes.values()) <= 20_000_000
    assert set(sizes) == set(quickstart._BUDGETS)
    assert min(sizes.values()) > 20_000
    assert len({record["meta"]["package"] for record in found}) > 20
    assert len({record["text"] for record in found}) < len(found), "natural duplicates stay"
    shards = [path.stat().st_size for path in corpus.glob("shard-*.jsonl.zst")]
    assert len(shards) == 7 and max(shards) < 1.5 * min(shards)


def test_no_machine_paths(corpus: Path) -> None:
    for record in records(corpus):
        meta = record["meta"]
        assert set(meta) == {"pile_set_name", "license", "package", "version", "path"}
        path = Path(meta["path"])
        assert not path.is_absolute() and ".." not in path.parts
        assert "__pycache__" not in path.parts and meta["license"]


def test_same_bytes_in_another_process(corpus: Path, tmp_path: Path) -> None:
    """Another hash seed, locale, time zone and working directory change nothing."""
    code = (
        "import sys, pathlib; from pipeline.demo.quickstart import collect;"
        "print(collect(pathlib.Path(sys.argv[1])).name)"
    )
    settings = {"PYTHONHASHSEED": "77", "LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == corpus.name
    assert file_hashes(tmp_path / corpus.name) == file_hashes(corpus)


def test_manifest_covers_every_file(corpus: Path) -> None:
    manifest = json.loads((corpus / "manifest.json").read_text())
    hashes = file_hashes(corpus)
    del hashes["manifest.json"]
    assert {entry["name"]: entry["hash"] for entry in manifest["files"]} == hashes
    for entry in manifest["files"]:
        assert entry["records"] == len(raw_lines(corpus / entry["name"]))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest", "index"])
def test_damage_is_rebuilt(
    corpus: Path,
    cache: Path,
    damage: str,
    gathered: list[quickstart._Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = file_hashes(corpus)
    gather = Mock(return_value=gathered)
    monkeypatch.setattr(quickstart, "_gather", gather)
    _damage(corpus, cache, damage)
    assert quickstart.collect(cache) == corpus
    assert file_hashes(corpus) == before
    assert quickstart.collect(cache) == corpus
    assert gather.call_count == 1


def _damage(corpus: Path, cache: Path, damage: str) -> None:
    shard = corpus / "shard-03.jsonl.zst"
    data = bytearray(shard.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    elif damage == "cut":
        shard.write_bytes(data[:-1])
    elif damage == "remove":
        shard.unlink()
    elif damage == "manifest":
        (corpus / "manifest.json").write_text("{}")
    else:
        (index,) = (cache / "quickstart-index").iterdir()
        index.write_text('{"directory": "../elsewhere", "manifest_hash": ""}')


def test_other_environment_gets_another_index(
    corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = quickstart._environment()
    assert before == quickstart._environment()
    monkeypatch.setattr(quickstart, "_distributions", quickstart._distributions()[1:].copy)
    assert quickstart._environment() != before


def test_too_small_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "_distributions", list)
    with pytest.raises(InputError, match="at least 12,000,000 are needed"):
        quickstart.collect(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_documentation_strings_carry_their_names(tmp_path: Path) -> None:
    module = tmp_path / "sample.py"
    module.write_text('"""Top."""\n\n\nclass A:\n    def f(self):\n        """Do f."""\n')
    assert quickstart._docstrings(module) == "sample\n\nTop.\n\nsample.A.f\n\nDo f.\n"
    module.write_text('"""Broken."""\n"""\\ud800"""\nclass {{ template }}')
    assert quickstart._docstrings(module) is None


def test_unfit_files(tmp_path: Path) -> None:
    contents = {"latin": b"caf\xe9", "nul": b"a\0b", "blank": b" \n", "big": b"x" * 100_001}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        assert quickstart._read(tmp_path / name) is None
    assert quickstart._read(tmp_path / "absent") is None
    assert quickstart._fit("\ud800") is None
    long = quickstart._head("é" * 30_000 + "\n" + "é" * 30_000)
    assert long == "é" * 30_000


def test_planted_records(corpus: Path) -> None:
    lines = raw_lines(corpus / "zz-planted.jsonl.zst")
    assert lines == list(planted.lines())
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[-2])
    with pytest.raises(UnicodeEncodeError):
        json.loads(lines[-1])["text"].encode()
    texts = {Path(r["meta"]["path"]).name: r["text"] for r in map(json.loads, lines[:-2])}
    book = json.loads(lines[0])
    assert book["meta"]["pile_set_name"] == "Books3" and book["meta"]["license"] == "mit"
    assert "z-lib.org" in texts["bread.txt"]
    assert "schÃ¶n" in texts["mojibake-de.txt"]
    assert "schön" in ftfy.fix_text(texts["mojibake-de.txt"])
    assert ftfy.fix_text(texts["mojibake-fr.txt"]).startswith("Le relieur travaillait près de la")
    assert texts["keys.txt"] == texts["keys-copy.txt"]
    words = [texts[name].split() for name in ("weather.txt", "weather-edited.txt")]
    assert sum(a != b for a, b in zip(*words, strict=True)) == 1
    assert 1300 < len(texts["weather.txt"]) < 1700
    assert texts["special-token.txt"].count("<|endoftext|>") == 1
    for name, text in texts.items():
        assert (len(text) < 200) == name.startswith("tiny"), name
