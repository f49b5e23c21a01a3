"""Spans cut out of rows: how many and where, what is told of them, and that only (seed, sample)
decides. The judge is a plain rule on lists."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.sections import CorruptSpans, SampleInputConfig
from trainer.data import TrainingData, open_training
from trainer.data.span_corruption import SpanCorruption

from .conftest import EOS, MSL, VOCABULARY, all_rows, sample_rows
from .test_masking import tokenizer_json

START, FIRST = 7777, 9000
"""Ids that no row has; sentinels are FIRST, FIRST - 1, ..."""


def corruption(**rule) -> SpanCorruption:
    sentinels = tuple(range(FIRST, FIRST - 200, -1))
    return SpanCorruption(CorruptSpans(name="corrupt_spans", **rule), sentinels, EOS, START)


def rows_of(ids, counts=None) -> np.ndarray:
    counts = [1] * len(ids) if counts is None else counts
    return np.array([[ids, counts, [*ids[1:], 3]]], np.int32)


def put_back(inputs: list[int], told: list[int]) -> list[int]:
    """The row, by a plain rule: what stands behind a sentinel in the one takes its place in the
    other."""
    assert inputs[-1] == told[-1] == EOS
    spans: dict[int, list[int]] = {}
    for token in told[:-1]:
        if token > START:
            assert token not in spans
            spans[last := token] = []
        else:
            spans[last].append(token)
    assert list(spans) == [FIRST - k for k in range(len(spans))]  # in order, from the first on
    assert [token for token in inputs if token > START] == list(spans)
    return [t for token in inputs[:-1] for t in spans.get(token, [token])]


@given(
    length=st.integers(2, 80),
    density=st.sampled_from([0.01, 0.15, 0.5, 0.95]),
    span=st.sampled_from([1.0, 3.0, 10.0]),
    number=st.integers(0, 1000),
)
def test_every_token_is_read_or_told_once_and_sentinels_are_in_order(length, density, span, number):
    rule = corruption(noise_density=density, mean_noise_span_length=span)
    ids = list(range(1, length + 1))
    batch = rule.of_training(rows_of(ids), 3, np.array([number]))
    inputs, told = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    assert put_back(inputs, told) == ids
    assert inputs[0] == 1 and told[-2] == length  # as in T5
    noise = min(max(round(length * density), 1), length - 1)
    assert sum(token < START and token != EOS for token in told) == noise
    spans = sum(token > START for token in told)
    assert spans == min(max(round(noise / span), 1), length - noise)
    assert all(b <= START for a, b in itertools.pairwise(inputs) if a > START)
    assert (len(inputs), len(told)) == rule.rule.lengths(length)
    assert batch["decoder_input_ids"][0].tolist() == [START, *told[:-1]]
    assert batch["attention_mask"].all()


def test_lengths_are_those_of_t5():
    """`compute_input_and_target_lengths` of its authors' code gives (568, 114) for 512 inputs."""
    rule = CorruptSpans(name="corrupt_spans")
    for inputs in range(10, 700):
        tokens = rule.row_length(inputs)
        assert rule.lengths(tokens)[0] <= inputs < rule.lengths(tokens + 1)[0]
        assert rule.row_length(*rule.lengths(tokens)) == tokens
    assert (rule.row_length(512), rule.lengths(568)) == (568, (512, 114))


def test_all_ways_to_cut_are_equally_likely():
    """Of 8 tokens 4 in 2 spans: 3 ways to cut them, and 3 to cut the rest, by numbers of tokens."""
    rule = corruption(noise_density=0.5, mean_noise_span_length=2.0)
    rows = np.repeat(rows_of(list(range(1, 9))), 9000, axis=0)
    inputs = rule.of_training(rows, 1, np.arange(9000))["input_ids"]
    kept = [tuple(row[row < START].tolist()) for row in inputs]
    found = {way: kept.count(way) for way in set(kept)}
    assert len(found) == 9
    assert min(found.values()) > 900 and max(found.values()) < 1100


def test_what_is_told_counts_as_its_token_does():
    rule = corruption(noise_density=0.5, mean_noise_span_length=2.0)
    ids = list(range(1, 13))
    for number in range(50):
        counts = np.random.default_rng(number).integers(0, 2, 12).tolist()
        batch = rule.of_training(rows_of(ids, counts), 3, np.array([number]))
        # A plain rule: token i counts if the label that it is, of column i - 1, does.
        counted = {t: counts[max(t - 2, 0)] for t in ids}
        told = batch["labels"][0].tolist()
        expected = [
            counted[t if t != EOS and t < START else told[i + 1] if t > START else told[i - 1]]
            for i, t in enumerate(told)
        ]
        assert batch["attention_mask"][0].tolist() == expected
    nothing = rule.of_training(rows_of(ids, [0] * 12), 3, np.array([0]))
    assert not nothing["attention_mask"].any()  # as of a document that was taken down


def test_groups_of_what_is_told_are_those_of_its_tokens():
    rule = corruption(noise_density=0.5, mean_noise_span_length=2.0)
    rows, numbers = np.repeat(rows_of(list(range(1, 13))), 5, axis=0), np.arange(5)
    groups = np.repeat(np.arange(2, 14)[None], 5, axis=0)  # of label i, which is token i + 2
    groups[:, -1] = 99
    told = rule.of_told(groups, rows, numbers)
    labels = rule.of_evaluation(rows, numbers)["labels"]
    of_text = labels < START
    of_text[:, -1] = False
    expected = np.maximum(labels, 2)  # the first token has the group of the second
    assert np.array_equal(told[of_text], expected[of_text])
    assert np.array_equal(told[:, 0], told[:, 1])
    assert np.array_equal(told[:, -1], told[:, -2])


def test_spans_depend_on_seed_and_sample_alone():
    rows = np.repeat(sample_rows(1), 6, axis=0)
    rule = corruption(noise_density=0.5, mean_noise_span_length=2.0)
    numbers = np.array([5, 6, 7, 8, 9, 10])
    whole = rule.of_training(rows, 3, numbers)["input_ids"]
    part = rule.of_training(rows[2:4], 3, numbers[2:4])["input_ids"]
    assert np.array_equal(part, whole[2:4])
    assert not np.array_equal(rule.of_training(rows, 4, numbers)["input_ids"], whole)
    assert not np.array_equal(rule.of_evaluation(rows, numbers)["input_ids"], whole)
    assert len({row.tobytes() for row in whole}) > 2
    assert np.array_equal(rows, np.repeat(sample_rows(1), 6, axis=0))


EXTRA = {"extra_ids": 5}


def section(place, use_vsl=False, **rule):
    transform = {"name": "corrupt_spans", "noise_density": 0.3, **EXTRA, **rule}
    return SampleInputConfig(
        data_dir=str(place), batch_size=2, use_vsl=use_vsl, data_transforms=[transform]
    )


@pytest.fixture
def t5(model) -> ModelConfig:
    """For rows of 8 tokens: 2 are cut out in one span."""
    changes = {
        "vocab_size": VOCABULARY + 5, "max_position_embeddings": 8,
        "tgt_max_position_embeddings": 4, "bidirectional": True, "decoder_num_hidden_layers": 1,
        "position_embedding_type": "relative",
    }  # fmt: skip
    return ModelConfig.model_validate({**dict(model), **changes})


@pytest.mark.parametrize("layout", ["sample", "corpus"])
def test_a_run_reads_samples_of_the_models_lengths(make, t5, layout):
    source = open_training(section(make("set", 40, layout)), t5)
    data = TrainingData(source, seed=5, schedule=((1, 3),))
    batch = data.batch(1)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (3, 8), "decoder_input_ids": (3, 4), "labels": (3, 4),
        "attention_mask": (3, 4),
    }  # fmt: skip
    assert batch["labels"][:, 0].tolist() == [VOCABULARY + 4] * 3
    assert (batch["decoder_input_ids"][:, 0] == EOS).all()
    again = TrainingData(source, seed=5, schedule=((1, 3),)).batch(1)
    assert all((again[name] == value).all() for name, value in batch.items())
    described = data.describe()["masking"]
    assert described["sentinel_ids"] == [VOCABULARY + 4]
    assert (described["eos_id"], described["decoder_start_token_id"]) == (EOS, EOS)


def test_sentinels_and_pad_are_those_of_the_tokenizer_by_name(make, t5, tmp_path):
    place = make("hdf5/train", 4, eos_id=2)
    json = tokenizer_json("</s>", "<pad>", "<extra_id_1>", "<extra_id_0>")
    (tmp_path / "tokenizer.json").write_text(json)
    own = t5.model_copy(update={"vocab_size": VOCABULARY})
    found = open_training(section(place, extra_ids=None), own).masking
    assert isinstance(found, SpanCorruption)
    assert (found.sentinels, found.eos_id, found.start_id) == ((5,), 2, 3)


def test_too_few_sentinels_are_refused(make, t5):
    own = t5.model_copy(update={"vocab_size": VOCABULARY})
    place = make("set", 4)
    expected = r"1 spans are cut out of a row of 8 tokens, but the tokenizer .* gives 0 sentinels"
    with pytest.raises(ConfigError, match=expected):
        open_training(section(place, extra_ids=None), own)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_position_embeddings": 9}, "max_position_embeddings: 8"),
        ({"tgt_max_position_embeddings": 30}, "tgt_max_position_embeddings: 4"),
        ({"vocab_size": VOCABULARY}, f"vocab_size: {VOCABULARY + 5}"),
        ({"vocab_size": VOCABULARY + 9}, rf"vocab_size: {VOCABULARY + 5} \(or extra_ids: 9\)"),
    ],
)
def test_a_model_of_other_lengths_is_told_the_right_ones(make, t5, changes, expected):
    with pytest.raises(ConfigError, match=rf"rows of {MSL} tokens .* samples that need {expected}"):
        open_training(section(make("set", 4)), t5.model_copy(update=changes))


def test_packed_rows_and_an_unknown_eos_are_refused(make, t5):
    with pytest.raises(ValueError, match="corrupt_spans needs use_vsl: false"):
        section("set", use_vsl=True)
    with pytest.raises(
        ConfigError, match=r"format vsl, but .*corrupt_spans needs sample or corpus"
    ):
        open_training(section(make("packed", 4, "vsl")), t5)
    foreign = make("foreign", 4)
    (foreign / "data_params.json").unlink()
    with pytest.raises(ConfigError, match="does not say which token ends a document"):
        open_training(section(foreign), t5)
    with pytest.raises(ConfigError, match=r"extra_ids is 9999; expected less than .*5005"):
        open_training(section(foreign, extra_ids=9999), t5)


def test_rows_stay_as_they_are(make, t5):
    place = make("set", 6)
    source = open_training(section(place), t5)
    before = all_rows(place)
    TrainingData(source, seed=1, schedule=((1, 6),)).batch(1)
    assert np.array_equal(source.read(np.arange(6)), before)
