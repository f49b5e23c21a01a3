"""Fixtures of every test: the shared reference corpora, and the hypothesis profiles."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]

# The same examples every time; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The reference corpora: WAFERMILL_SHARED_DATA, or ../shared/data beside the repository."""
    given = os.environ.get("WAFERMILL_SHARED_DATA")
    directory = Path(given) if given else REPOSITORY.parent / "shared" / "data"
    if not (directory / "SHA256SUMS").is_file():
        pytest.skip(f"{directory}: no reference corpora there; set WAFERMILL_SHARED_DATA")
    return directory
