"""Names of repositories, and the parts of an upload."""

from pathlib import Path

import pytest

from pipeline.core import hub
from pipeline.core.errors import ConfigError


def test_parts_are_bounded_and_the_last_file_stays_last(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = [hub.Upload(f"f{n}", Path("x"), 10) for n in range(7)]
    monkeypatch.setattr(hub, "_COMMIT_BYTES", 30)
    assert [len(group) for group in hub._in_commits(uploads)] == [3, 3, 1]
    monkeypatch.setattr(hub, "_COMMIT_FILES", 2)
    groups = list(hub._in_commits(uploads))
    assert [len(group) for group in groups] == [2, 2, 2, 1]
    assert [file for group in groups for file in group] == uploads


@pytest.mark.parametrize("to", ["me/corpus", "hf://models/me/x", "hf://datasets/me", "hf:me/x"])
def test_names_of_data_sets_that_are_none(to: str) -> None:
    with pytest.raises(ConfigError, match="expected hf://datasets/OWNER/NAME"):
        hub.read_name(to, "dataset")


@pytest.mark.parametrize("to", ["me/gpt", "hf://gpt", "hf://datasets/me/x", "hf://me/x/y"])
def test_names_of_models_that_are_none(to: str) -> None:
    with pytest.raises(ConfigError, match="expected hf://OWNER/NAME"):
        hub.read_name(to, "model")
