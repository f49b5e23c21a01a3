"""An error of a command: one line on stderr, and the exit code of its family."""

import pytest
import typer

from pipeline.core.errors import ConfigError, InputError, IntegrityError, ResourceError
from trainer.commands.options import one_line_errors
from trainer.errors import LostRankError, TrainingError
from wafer_backend.errors import (
    BackendConfigError,
    BackendError,
    CheckpointError,
    StepError,
    TransportError,
)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (TrainingError, 1),
        (ConfigError, 2),
        (InputError, 3),
        (IntegrityError, 4),
        (ResourceError, 5),
        (LostRankError, 75),
        (BackendError, 2),
        (BackendConfigError, 2),
        (CheckpointError, 2),
        (StepError, 1),
        (TransportError, 75),
    ],
)
def test_each_family_has_its_exit_code(kind, code, capsys):
    with pytest.raises(typer.Exit) as end, one_line_errors():
        raise kind("nothing to learn from")
    assert end.value.exit_code == code
    assert capsys.readouterr() == ("", "error: nothing to learn from\n")


def test_whatever_a_message_holds_is_one_short_line(capsys):
    with pytest.raises(typer.Exit), one_line_errors():
        raise InputError("a\n\x1b[31mb" + "c" * 5000)
    shown = capsys.readouterr().err
    assert shown.startswith("error: a\\n\\x1b[31mbccc")
    assert shown.endswith("c…\n")
    assert len(shown) < 2050


def test_every_mistake_of_a_config_has_a_line(capsys):
    with pytest.raises(typer.Exit), one_line_errors():
        raise ConfigError("a.yaml:1: b\na.yaml:2: \x1b[31mc")
    assert capsys.readouterr().err == "error: a.yaml:1: b\na.yaml:2: \\x1b[31mc\n"


def test_what_is_no_error_of_ours_passes():
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind), one_line_errors():
            raise kind
