"""What the errors of stores mean."""

from typing import Any

import pytest

from pipeline.core.errors import InputError, ResourceError
from pipeline.sources import store


def _error(name: str, message: str, kind: type[Exception], cause: Exception | None = None) -> Any:
    made = type(name, (kind,), {})(message)
    made.__cause__ = cause
    return made


def _client_error(code: str, message: str) -> Exception:
    """What botocore raises, without botocore."""
    return _error("ClientError", f"An error occurred ({code}) when calling: {message}", Exception)


MISSING = _client_error("NoSuchBucket", "The specified bucket does not exist")
DENIED = _client_error("AccessDenied", "Access Denied")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_error("FileNotFoundError", "x", FileNotFoundError, MISSING), "no bucket b; correct its"),
        (MISSING, "no bucket b; correct its name"),
        (_error("PermissionError", "Access Denied", PermissionError, DENIED), "may read b"),
        (DENIED, "access denied"),
        (_error("NoCredentialsError", "Unable to locate credentials", Exception), "credentials"),
        (
            _error("HttpError", "Anonymous caller does not have access, 401", OSError),
            "access denied",
        ),
        (_client_error("InvalidAccessKeyId", "no such key id"), "access denied"),
        (
            _error("FileNotFoundError", "x", FileNotFoundError, _client_error("404", "Not Found")),
            "not found; correct the path",
        ),
    ],
)
def test_what_trying_again_cannot_mend(error: Exception, said: str) -> None:
    """Exit 3 with what to do; the errors of s3fs and gcsfs, whose packages are not installed."""
    trouble = store._trouble("s3://b/dir/a.jsonl", error)
    assert isinstance(trouble, InputError) and said in str(trouble)
    assert "again" not in str(trouble)


def test_what_it_may_mend() -> None:
    error = _error("EndpointConnectionError", "Could not connect to the endpoint", Exception)
    trouble = store._trouble("s3://b/a.jsonl", error)
    assert isinstance(trouble, ResourceError) and "run the same command again" in str(trouble)
