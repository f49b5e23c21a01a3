"""Tokens to guess: how many, which, what hides them, and that only (seed, sample) decides."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from trainer.config.sections import MaskTokens, SampleInputConfig
from trainer.data import TrainingData, open_training
from trainer.data.masking import TokenMasking, of_inputs

from .conftest import EOS, VOCABULARY, all_rows, sample_rows, vsl_rows

MASK = 4999


def masking(share: float = 0.15, special=(EOS, MASK), vocabulary: int = VOCABULARY):
    rule = MaskTokens(name="mask_tokens", masked_lm_prob=share)
    return TokenMasking(rule, MASK, tuple(special), vocabulary)


def section(place, **rule):
    transform = {"name": "mask_tokens", "mask_token_id": MASK} | rule
    return SampleInputConfig(data_dir=str(place), batch_size=2, data_transforms=[transform])


@given(st.data())
def test_the_right_number_of_tokens_is_chosen_and_the_rest_stays(data):
    length = data.draw(st.integers(1, 40))
    share = data.draw(st.sampled_from([0.01, 0.15, 0.5, 0.99]))
    ids = data.draw(st.lists(st.sampled_from([EOS, MASK, 5, 6, 7]), min_size=length,
                             max_size=length))  # fmt: skip
    counts = data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    rows = np.array([[ids, counts, [9] * length]], np.int32)
    seen, chosen, labels = masking(share).of_training(rows, 3, np.array([17]))[0]
    # A plain rule: token i may be chosen if the label that it is, of column i - 1, counts.
    free = [i for i, t in enumerate(ids) if t > EOS and t != MASK and counts[max(i - 1, 0)]]
    assert labels.tolist() == ids
    assert set(np.flatnonzero(chosen)) <= set(free)
    assert chosen.sum() == (max(1, round(share * len(free))) if free else 0)
    assert (seen[chosen == 0] == labels[chosen == 0]).all()


def test_four_fifths_are_hidden_a_tenth_is_random_and_a_tenth_stays():
    rows = np.stack([np.full((400, 100), 77), np.ones((400, 100)), np.zeros((400, 100))], axis=1)
    out = masking(0.5).of_training(rows.astype(np.int32), 1, np.arange(400))
    seen = out[:, 0][out[:, 1] == 1]
    assert len(seen) == 400 * 50
    assert (seen == MASK).mean() == pytest.approx(0.8, abs=0.012)
    assert (seen == 77).mean() == pytest.approx(0.1, abs=0.01)
    random = seen[(seen != MASK) & (seen != 77)]
    assert random.min() < 50
    assert random.max() > VOCABULARY - 50
    assert random.mean() == pytest.approx(VOCABULARY / 2, rel=0.05)


def test_a_mask_depends_on_seed_and_sample_alone():
    rows = np.repeat(sample_rows(1), 6, axis=0)
    rule, numbers = masking(0.4), np.array([5, 6, 7, 8, 9, 10])
    whole = rule.of_training(rows, 3, numbers)
    assert np.array_equal(rule.of_training(rows[2:4], 3, numbers[2:4]), whole[2:4])
    assert not np.array_equal(rule.of_training(rows, 4, numbers), whole)
    assert not np.array_equal(rule.of_evaluation(rows, numbers), whole)
    assert len({row.tobytes() for row in whole}) > 3
    assert np.array_equal(rows, np.repeat(sample_rows(1), 6, axis=0))


def test_the_first_token_of_a_packed_segment_counts_as_its_own_label_does():
    rows = vsl_rows(1)
    of_labels = np.array([[1, 2, 3, 4, 5, 6, 7, 8]])
    assert of_inputs(of_labels, rows).tolist() == [[1, 1, 2, 3, 4, 6, 6, 8]]
    out = masking(0.99).of_training(rows, 1, np.array([0]))
    assert out[0, 1].tolist() == [1] * 7 + [0]  # not the pad
    assert np.array_equal(out[:, 3:], rows[:, 3:])


def test_an_epoch_later_a_row_is_masked_otherwise(make, model):
    source = open_training(section(make("set", 4)), model)
    data = TrainingData(source, seed=5, schedule=((1, 4),))
    first, second = data.batch(1), data.batch(2)
    by_row = [{tuple(b["labels"][i].tolist()): b["attention_mask"][i].tolist() for i in range(4)}
              for b in (first, second)]  # fmt: skip
    assert by_row[0].keys() == by_row[1].keys()
    assert by_row[0] != by_row[1]
    assert set(by_row[0]) == {tuple(row) for row in all_rows(source.datasets[0].directory)[:, 0]}
    again = TrainingData(source, seed=5, schedule=((1, 4),))
    assert (again.batch(2)["input_ids"] == second["input_ids"]).all()
    assert data.describe()["masking"] == {
        "mask_token_id": MASK, "masked_lm_prob": 0.15, "special_token_ids": [EOS, MASK],
    }  # fmt: skip


def tokenizer_json(*special: str) -> str:
    words = ["a", "b", *special]
    added = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, t in enumerate(words) if t in special
    ]  # fmt: skip
    model = {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": []}
    return json.dumps({"version": "1.0", "added_tokens": added, "model": model})


def test_the_mask_token_is_that_of_the_tokenizer_by_name(make, model, tmp_path):
    place = make("hdf5/train", 4, eos_id=2)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json("</s>", "<cls>", "[MASK]"))
    source = open_training(section(place, mask_token_id=None), model)
    assert source.masking is not None
    assert source.masking.mask_id == 4
    assert source.masking.special == (2, 3, 4)
    with pytest.raises(ConfigError, match=r"'<m>', but .* \(it has: </s>, <cls>, \[MASK\]\)"):
        open_training(section(place, mask_token_id=None, mask_token="<m>"), model)


def test_a_missing_mask_token_is_refused(make, model):
    place = make("set", 4)
    with pytest.raises(ConfigError, match=r"mask_token is '\[MASK\]', but .*give mask_token_id"):
        open_training(section(place, mask_token_id=None), model)
    with pytest.raises(ConfigError, match=r"the mask token is 5000, but model\.vocab_size is 5000"):
        open_training(section(place, mask_token_id=5000), model)
