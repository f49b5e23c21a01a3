"""Anchors are expanded up to a limit; everything else stays as strict as YAML is read elsewhere."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from trainer.config import params_file


def load(tmp_path: Path, text: str):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return params_file.load_params_yaml(path)


def test_aliases_are_copies_with_the_lines_of_their_anchor(tmp_path):
    loaded = load(tmp_path, "a: &x\n  b: &y [1, 2]\n  c: 3\nd: *x\ne: *y\n")
    whole = {"b": [1, 2], "c": 3}
    assert loaded.value == {"a": whole, "d": whole, "e": [1, 2]}
    assert loaded.where("d.c").endswith(":3")
    loaded.value["d"]["b"].append(9)
    assert loaded.value["a"] == whole


def test_booleans_of_yaml_1_1_with_capitals(tmp_path):
    loaded = load(tmp_path, "a: True\nb: FALSE\nc: 'True'\nd: yes\n")
    assert loaded.value == {"a": True, "b": False, "c": "True", "d": "yes"}


def test_a_value_given_twice_is_taken_if_it_is_the_same(tmp_path):
    loaded = load(tmp_path, "a:\n  b: -0.16\n  b: -0.16\nc: true\n")
    assert loaded.value == {"a": {"b": -0.16}, "c": True}
    assert loaded.repeated == ("a.b",)
    assert loaded.where("a.b").endswith(":2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {b: 1}\nc:\n  d: 1\n  d: true\n", "file.yaml:4: duplicate key c.d (first on line 3)"),
        ("a: []\na: []\n", "file.yaml:2: duplicate key a"),
        ("a: *x\n", "file.yaml:1: *x refers to no anchor above it"),
        ("a: &x {b: *x}\n", "file.yaml:1: *x refers to no anchor"),
        ("a: 1\na: 2\n", "file.yaml:2: duplicate key a"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "file.yaml:3: merge keys"),
        ("a: !!python/name:os.system ''\n", "file.yaml:1: tags"),
        ("a: [1\n", "not valid YAML"),
        ("- 1\n", "file.yaml:1: expected a mapping"),
        ("a: " + "[" * 60 + "]" * 60, "more than 50 nested levels"),
    ],
)
def test_refused(tmp_path, text, expected):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)


def test_a_bomb_is_refused(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="more than 100,000 values after aliases are expanded"):
        load(tmp_path, "\n".join(lines))


plain = st.recursive(
    st.integers(-9, 9) | st.booleans() | st.sampled_from(["a", "b c"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("uvw"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("xyz"), plain, min_size=1), plain)
def test_expanded_files_equal_what_they_stand_for(tmp_path_factory, value, shared):
    """PyYAML writes an object that stands in two places with an anchor and an alias."""
    whole = {**value, "first": shared, "second": [shared, {"third": shared}]}
    path = tmp_path_factory.mktemp("aliases") / "file.yaml"
    path.write_text(yaml.safe_dump(whole))
    assert params_file.load_params_yaml(path).value == whole
