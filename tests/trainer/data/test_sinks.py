"""Sink tokens before every row: read, masked, refused where they do not fit, and trained on."""

import numpy as np
import pytest
from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from pipeline.lineage.forward import NO_SOURCE
from trainer.config.sections import SampleInputConfig
from trainer.data import SampleSource, TrainingData, open_training
from trainer.data.source import SourcesOfLabels, to_batch

from .conftest import MSL, VOCABULARY, all_rows

SINKS = [{"name": "add_sink_tokens", "sink_token_id": 77, "num_sink_tokens": 3}]


def section(*places, **changes):
    return SampleInputConfig(
        data_dir=tuple(map(str, places)), batch_size=2, data_transforms=SINKS, **changes
    )


def longer(model, by: int = 3):
    return model.model_copy(update={"max_position_embeddings": MSL + by})


@pytest.mark.parametrize("count", [1, 2], ids=["one data set", "several"])
def test_rows_begin_with_sinks_that_do_not_count(make, model, count):
    places = [make(f"set{n}", 4, first=1 + 100 * n) for n in range(count)]
    source = open_training(section(*places), longer(model))
    rows_B = np.array([3, 0, 2])
    batch = to_batch(source.read(rows_B))
    assert source.max_sequence_length == MSL + 3
    for name, sink in (("input_ids", 77), ("labels", 77), ("attention_mask", 0)):
        assert (batch[name][:, :3] == sink).all()
    plain = all_rows(places[0])[rows_B]
    found = np.stack([batch[n] for n in ("input_ids", "attention_mask", "labels")], axis=1)
    assert np.array_equal(found[:, :, 3:], plain)


def test_no_source_has_the_labels_of_sinks(make, model):
    source = open_training(section(make("set", 4)), longer(model))
    groups = SourcesOfLabels(source).of(np.array([1]))
    assert groups.tolist() == [[NO_SOURCE] * 3 + [0] * MSL]


def test_what_does_not_fit_is_refused(make, model):
    place = make("set", 4)
    with pytest.raises(ConfigError, match="max_position_embeddings is 5 but the data set"):
        open_training(section(place), model)
    small = longer(model).model_copy(update={"vocab_size": 70})
    with pytest.raises(ConfigError, match="sink_token_id is 77, but model"):
        open_training(section(place), small)
    with pytest.raises(ConfigError, match="num_sink_tokens is 3; expected less than"):
        open_training(section(place), longer(model, 3 - MSL))
    with pytest.raises(ConfigError, match="format corpus, but data_transforms: add_sink_tokens"):
        open_training(section(make("text", 40, layout="corpus")), longer(model))
    with pytest.raises(ValidationError, match="add_sink_tokens needs use_vsl: false"):
        section(place, use_vsl=True)
    assert VOCABULARY > 77


def test_the_record_of_a_run_has_the_rows_of_the_data_set_and_the_sinks(make, model):
    source = open_training(section(make("set", 4)), longer(model))
    fields = TrainingData(source, seed=5, schedule=((1, 2),)).describe()
    assert fields["max_sequence_length"] == MSL
    assert fields["sinks"]["sink_token_id"] == 77
    plain = SampleSource.of(*source.datasets)
    assert "sinks" not in TrainingData(plain, seed=5, schedule=((1, 2),)).describe()
