"""Fill-in-the-middle from the config to the rows, against the same in plain Python: `tokenizers`,
slices of strings and hashes of one document at a time."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

import pipeline
from pipeline.core import rng
from pipeline.core.errors import ConfigError
from pipeline.lineage.sample import _find_tokens
from pipeline.tokenizers.arrangement import AS_IS, SPM, FillInMiddle, arrange
from pipeline.tokenizers.definition import decode_bytes, load_definition

from .conftest import Corpus, Ended

EOS, BOS, PREFIX, MIDDLE, SUFFIX = range(50256, 50261)
NAMES = {BOS: "<s>", PREFIX: "<fim_prefix>", MIDDLE: "<fim_middle>", SUFFIX: "<fim_suffix>"}
RATE, SPM_RATE, SEED, LONGEST = 0.6, 0.4, 7, 900


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 with the special tokens."""
    directory = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer.from_str(load_definition("gpt2").json)
    made.add_special_tokens(list(NAMES.values()))
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    return directory


@pytest.fixture(scope="module")
def plain(tokenizer: Path) -> Callable[[str], list[int]]:
    """Text to ids by `tokenizers`."""
    engine = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    engine.encode_special_tokens = True
    return lambda text: list(engine.encode(text, add_special_tokens=False).ids)


def run(corpus: Corpus, tokenizer: Path, out: Path, *more: str) -> Path:
    settings = (
        f"tokenize.tokenizer={tokenizer}", f"tokenize.fim.rate={RATE}",
        f"tokenize.fim.spm_rate={SPM_RATE}", *more,
    )  # fmt: skip
    pipeline.run(corpus.config, out, 0, overrides=settings)
    return out


FORMS = {
    "sample": (),
    "vsl": ("tokenize.bos=<s>", f"tokenize.fim.max_characters={LONGEST}"),
    "corpus": ("lines.unit=line", "lines.min_documents=2", "lines.min_characters=5"),
}


@pytest.fixture(scope="module", params=FORMS)
def rearranged(
    request: pytest.FixtureRequest, corpus: Corpus, tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    out = tmp_path_factory.mktemp("fim") / request.param
    return run(corpus, tokenizer, out, f"pack.format={request.param}", *FORMS[request.param])


def uniform(key: bytes, purpose: str) -> float:
    """The draw of one document."""
    pair = np.frombuffer(key, "<u8").reshape(1, 2)
    return float(rng.unit_interval(rng.rank(pair, SEED, f"fill in the middle: {purpose}"))[0])


def oracle(
    text: str, key: bytes, encode: Callable[[str], list[int]], bos: list[int]
) -> tuple[str, list[tuple[str, int, int]]]:
    """The order of a document of train, and its tokens: (part, its id, byte of the text that its
    part starts with), by Bavarian et al."""
    too_long = bool(bos) and len(text) > LONGEST  # the run with a BOS has that limit
    if too_long or uniform(key, "whether") >= RATE:
        tokens = [("", t, 0) for t in encode(text)]
        return "", [*(("marker", b, 0) for b in bos), *tokens, ("marker", EOS, 0)]
    first, second = sorted(
        int(uniform(key, which) * (len(text) + 1)) for which in ("first cut", "second cut")
    )

    def part(name: str, start: int, stop: int) -> list[tuple[str, int, int]]:
        at = len(text[:start].encode())
        return [(name, token, at) for token in encode(text[start:stop])]

    prefix, middle = part("prefix", 0, first), part("middle", first, second)
    suffix = part("suffix", second, len(text))
    pre, mid, suf = ([("marker", token, -1)] for token in (PREFIX, MIDDLE, SUFFIX))
    if uniform(key, "order") < SPM_RATE:
        order, body = "spm", [*pre, *suf, *suffix, *mid, *prefix, *middle]
    else:
        order, body = "psm", [*pre, *prefix, *suf, *suffix, *mid, *middle]
    return order, [*(("marker", b, -1) for b in bos), *body, ("marker", EOS, -1)]


def cut_texts(out: Path) -> dict[bytes, str]:
    """The texts as they were tokenized, by key."""
    cuts: dict[bytes, list[tuple[int, int]]] = {}
    if (out / "lines.parquet").exists():
        for cut in pq.read_table(out / "lines.parquet").to_pylist():
            cuts.setdefault(cut["doc_key"], []).append((cut["byte_start"], cut["byte_end"]))
    texts = {}
    for path in sorted((out / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        for key, text in zip(table["doc_key"].to_pylist(), table["text"].to_pylist(), strict=True):
            data = text.encode()
            for start, stop in sorted(cuts.get(key, []), reverse=True):
                data = data[:start] + data[stop:]
            texts[key] = data.decode()
    return texts


def read_documents(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / "documents.parquet").to_pylist()
    return rows


def tokens_of(out: Path) -> Iterator[tuple[bytes, list[int]]]:
    for path in sorted((out / "tokens").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        yield from zip(table["doc_key"].to_pylist(), table["tokens"].to_pylist(), strict=True)


def begins_with(out: Path) -> list[int]:
    return [BOS] if "bos_token" in (out / "tokenizer_config.json").read_text() else []


def test_tokens_and_what_is_said_of_them(
    rearranged: Path, plain: Callable[[str], list[int]]
) -> None:
    texts, bos = cut_texts(rearranged), begins_with(rearranged)
    about = {
        row["doc_key"]: row for row in pq.read_table(rearranged / "documents.parquet").to_pylist()
    }
    orders = []
    for key, tokens in tokens_of(rearranged):
        text, row = texts[key], about[key]
        assert row["tokens"] == len(tokens)
        if row["split"] != "train":
            assert row["fim_order"] == ""
            assert tokens == [*bos, *plain(text), EOS], "held-out documents stay as they are"
            continue
        order, expected = oracle(text, key, plain, bos)
        assert tokens == [token for _, token, _ in expected]
        assert row["fim_order"] == order
        orders.append(order)
        if order:
            count = {
                p: sum(name == p for name, _, _ in expected) for p in ("prefix", "middle", "suffix")
            }
            assert {p: row[f"fim_{p}_tokens"] for p in count} == count
            assert row["fim_end"] == len(text.encode())
    assert {"", "psm", "spm"} == set(orders)


def test_the_parts_put_back_are_the_text(rearranged: Path) -> None:
    """From the ids alone, by the special tokens."""
    texts, moved = cut_texts(rearranged), 0
    for key, tokens in tokens_of(rearranged):
        ids = [token for token in tokens if token not in (BOS, EOS)]
        if ids[0] == PREFIX:
            moved += 1
            suffix_at, middle_at = ids.index(SUFFIX), ids.index(MIDDLE)
            prefix, suffix = ids[1:suffix_at], ids[suffix_at + 1 : middle_at]
            middle = ids[middle_at + 1 :]  # of SPM the prefix too, before it
            joined = b"".join(decoded(part) for part in (prefix, middle, suffix))
        else:
            joined = decoded(ids)
        assert joined.decode() == texts[key]
    assert moved > 20


def decoded(ids: list[int]) -> bytes:
    return decode_bytes(load_definition("gpt2"), np.array(ids, np.int64))


def test_verify_tokenizes_every_span_again(rearranged: Path) -> None:
    checks = {check.name: check.detail for check in pipeline.verify(rearranged, lineage=10**6)}
    assert " are equal" in checks["lineage"]


def read_row(out: Path, file: str, row: int | None) -> list[int]:
    with h5py.File(out / "hdf5" / file) as opened:
        return list(opened["data"][:] if row is None else opened["data"][row, 0])


def test_trace_says_which_part_every_token_is_of(
    rearranged: Path, plain: Callable[[str], list[int]]
) -> None:
    """Every input of a few rows: its document, its part and the bytes of that part."""
    texts, bos = cut_texts(rearranged), begins_with(rearranged)
    file, named = "train/examples_000000.h5", 0
    is_corpus = rearranged.name == "corpus"
    for row in [None] if is_corpus else range(12):
        where = {"tokens": (100, 2500)} if is_corpus else {"row": row}
        for span in pipeline.trace(rearranged, file=f"hdf5/{file}", **where):
            key = bytes.fromhex(span.document)
            order, expected = oracle(texts[key], key, plain, bos)
            first = span.doc_token_start
            count = span.token_end - span.token_start
            stored = read_row(rearranged, file, row)[span.token_start : span.token_end]
            assert stored == [token for _, token, _ in expected[first : first + count]]
            if not order:
                assert span.parts == ()
                continue
            said = [
                (part.name, part.byte_start if part.name != "marker" else -1)
                for part in span.parts
                for _ in range(part.token_start, part.token_end)
            ]
            assert said == [(name, at) for name, _, at in expected[first : first + count]]
            for part in span.parts:
                named += 1
                if part.name != "marker":
                    data = texts[key].encode()[part.byte_start : part.byte_end]
                    of_part = plain(data.decode())[part.part_token_start :]
                    here = read_row(rearranged, file, row)[part.token_start : part.token_end]
                    assert of_part[: len(here)] == here
    assert named > 10


def test_words_are_found_in_the_parts_that_hold_them(
    rearranged: Path, plain: Callable[[str], list[int]]
) -> None:
    """Of ten characters around the first cut: the tokens of its own parts that hold any of them."""
    if rearranged.name == "corpus":
        pytest.skip("lines are cut there, so offsets of the cleaned text are others")
    texts, bos = cut_texts(rearranged), begins_with(rearranged)
    cuts = {row["doc_key"]: row["fim_middle_start"] for row in read_documents(rearranged)}
    spans = {
        key: [(cut - 5, cut + 5)]
        for key, cut in cuts.items()
        if cut is not None and cut > 5 and texts[key][: cut + 5].isascii()
    }
    found = _find_tokens(rearranged, rearranged, spans, "train")
    straddled = 0
    for key in spans:
        _, expected = oracle(texts[key], key, plain, bos)
        held = {i for first, stop in found[key] for i in range(first, stop)}
        at: dict[str, int] = {}
        for place, (name, token, byte) in enumerate(expected):
            if name == "marker":
                assert place not in held
                continue
            start = at.get(name, byte)
            size = len(decoded([token]))
            at[name] = start + size
            assert (place in held) == (start < cuts[key] + 5 and start + size > cuts[key] - 5)
        straddled += len(found[key]) > 1
    assert straddled > 3


def test_rates_are_those_asked_for() -> None:
    """Within four standard deviations of a binomial, over 20,000 keys; cuts evenly over places."""
    count, length = 20_000, 9
    keys = np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)
    rules = FillInMiddle(rate=0.3, spm_rate=0.7, prefix_id=1, middle_id=2, suffix_id=3, seed=5)
    drawn = arrange(keys, np.full(count, length), rules)
    moved = drawn.order != AS_IS
    for share, hits, of in (
        (0.3, moved.sum(), count),
        (0.7, (drawn.order == SPM).sum(), moved.sum()),
    ):
        assert abs(hits - share * of) < 4 * (of * share * (1 - share)) ** 0.5
    both = np.bincount(np.r_[drawn.start, drawn.stop], minlength=length + 1)
    assert len(both) == length + 1 and (drawn.start <= drawn.stop).all()
    expected = 2 * count / (length + 1)
    assert (abs(both - expected) < 5 * expected**0.5).all()


@pytest.mark.parametrize("rearranged", ["sample"], indirect=True)
def test_output_does_not_depend_on_the_tasks(
    rearranged: Path, corpus: Corpus, tokenizer: Path, tmp_path: Path
) -> None:
    one = rearranged
    two = run(corpus, tokenizer, tmp_path / "two", "read.task_bytes=9000")
    names = sorted(path.relative_to(one) for path in (one / "hdf5").rglob("*.h5"))
    assert names
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.parametrize("rearranged", ["corpus"], indirect=True)
def test_keeping_little_changes_no_row(
    rearranged: Path, corpus: Corpus, tokenizer: Path, tmp_path: Path
) -> None:
    """Intermediates go as soon as no stage reads them, which is not before tokenizing."""
    settings = ("pack.format=corpus", *FORMS["corpus"], "keep=minimal")
    least = run(corpus, tokenizer, tmp_path / "least", *settings)
    pipeline.verify(least, lineage=100)
    shards = [path.relative_to(rearranged) for path in (rearranged / "hdf5").rglob("*.h5")]
    assert shards
    for shard in shards:
        assert (rearranged / shard).read_bytes() == (least / shard).read_bytes()


@pytest.mark.parametrize("rearranged", ["sample"], indirect=True)
def test_repacked_rows_are_traced_to_the_parts(
    rearranged: Path, tmp_path: Path, prep: Callable[..., Ended]
) -> None:
    packed = tmp_path / "packed"
    assert prep("repack", rearranged, "--out", packed, "--format", "vsl").code == 0
    assert prep("verify", packed).code == 0
    file = "hdf5/train/examples_000000.h5"
    names: set[str] = set()
    for row in range(5):
        shown = prep("trace", packed, "--file", file, "--row", row, "--json")
        found = [span.get("parts", ()) for span in json.loads(shown.out)]
        named = {part["name"] for parts in found for part in parts}
        assert all(parts != [] for parts in found), "other documents have no such key"
        assert all(
            name in prep("trace", packed, "--file", file, "--row", row).out for name in named
        )
        names |= named
    assert names == {"prefix", "middle", "suffix", "marker"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("tokenize.tokenizer=gpt2",), "tokenize.fim.prefix: the tokenizer gpt2 has no token "),
        (("tokenize.fim.middle=<fim_prefix>",), "tokenize.fim.middle: .* of another part"),
        (("tokenize.fim.suffix=<|endoftext|>",), "tokenize.fim.suffix: .* in use as EOS"),
        (("tokenize.fim.suffix=the",), "tokenize.fim.suffix: the text 'the' becomes that token"),
        (("tokenize.special_tokens=[<fim_middle>]",), "tokenize.fim.middle: the text"),
    ],
)
def test_tokens_that_cannot_mark_a_part_are_refused(
    corpus: Corpus, tokenizer: Path, tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(corpus, tokenizer, tmp_path / "out", *settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "step",
    [
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}},
    ],
)
def test_a_tokenizer_that_puts_a_space_before_every_part_is_refused(
    corpus: Corpus, tokenizer: Path, tmp_path: Path, step: dict[str, Any]
) -> None:
    content = json.loads((tokenizer / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, **step}))
    with pytest.raises(ConfigError, match="puts a space before every text"):
        run(corpus, tmp_path, tmp_path / "out", "tokenize.eos=<|endoftext|>")
