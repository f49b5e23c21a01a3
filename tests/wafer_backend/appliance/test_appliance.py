"""The names of `cerebras.appliance` that scripts import: what they do without an appliance."""

import copy
import logging
import os
from pathlib import Path

import pytest

from wafer_backend import appliance
from wafer_backend.appliance import (
    ClassLogger,
    TelemetryClient,
    collect_wsc_log_settings,
    convert_byte_unit,
    create_symlink,
    get_level_name,
    named_class_logger,
    retrieve_all_subclasses,
    storage,
    wsc_logger,
)
from wafer_backend.backends.debug_args import (
    DebugArgs,
    get_debug_args,
    set_default_ini,
    set_ini,
    update_debug_args_from_keys,
    write_debug_args,
)
from wafer_backend.errors import BackendError, CheckpointError


def test_debug_args_are_kept_written_and_read(tmp_path: Path) -> None:
    debug_args = DebugArgs()
    debug_args.debug_usr.worker_resource.memory_bytes = 5
    update_debug_args_from_keys(debug_args, {"a.b": True, "c": {"d": "x"}})
    set_ini(debug_args, lanes=3)
    set_default_ini(debug_args, lanes=4, other=False)
    path = tmp_path / "args.json"
    write_debug_args(debug_args, path)
    assert get_debug_args(path) == debug_args == copy.deepcopy(debug_args)
    assert debug_args.to_dict() == {
        "debug_usr": {"worker_resource": {"memory_bytes": 5}},
        "a": {"b": True},
        "c": {"d": "x"},
        "ini": {"lanes": 3, "other": False},
    }
    assert get_debug_args(None).to_dict() == {}
    merged = get_debug_args(path)
    other = DebugArgs()
    other.a.b, other.a.e = False, 1
    merged.MergeFrom(other)
    assert merged.a.to_dict() == {"b": False, "e": 1}
    path.write_bytes(b"\x0a\x02")
    with pytest.raises(ValueError, match=r"args\.json: not written by write_debug_args"):
        get_debug_args(path)


def test_loggers_have_the_name_of_their_class() -> None:
    @named_class_logger("Given")
    class Named(ClassLogger):
        pass

    @named_class_logger
    class Plain(ClassLogger):
        pass

    class Bare(ClassLogger):
        pass

    assert [kind().logger.name for kind in (Named, Plain, Bare)] == ["Given", "Plain", "Bare"]
    assert [get_level_name(x) for x in ("error", "TRACE", "verbose", 7)] == [40, 5, 15, 7]
    with pytest.raises(ValueError, match="unknown level 'loud'"):
        get_level_name("loud")
    wsc_logger.getChild("wgt").setLevel(logging.DEBUG)
    assert collect_wsc_log_settings() == {"cerebras.wsc.wgt": logging.DEBUG}


def test_storage_is_of_local_files(tmp_path: Path) -> None:
    path = tmp_path / "a.mdl"
    path.write_text("x")
    assert storage.StorageWriter.is_valid_path(path)
    assert not storage.S3Writer.is_valid_path(path)
    assert storage.S3Writer.is_valid_path("s3://bucket/a.mdl")
    assert storage.StorageReader.get_type(path)(path).fstat.st_size == 1
    storage.StorageDeleter.get(path).delete()
    assert not storage.StorageReader.path_exists(path)
    for refused in (storage.S3Reader, storage.H5Writer):
        with pytest.raises(CheckpointError, match="s3://bucket/a"):
            refused("s3://bucket/a")


def test_small_functions(tmp_path: Path) -> None:
    class Base: ...

    class Child(Base): ...

    class Left(Child): ...

    class Right(Child): ...

    class Both(Left, Right): ...

    assert retrieve_all_subclasses(Base) == [Child, Left, Both, Right]
    assert retrieve_all_subclasses(Base, lambda kind: kind is Left) == [Left]
    create_symlink(tmp_path / "latest", "first")
    create_symlink(tmp_path / "latest", "second")
    assert os.readlink(tmp_path / "latest") == "second"
    assert convert_byte_unit(3, "B", src_unit="GiB") == 3 * 1024**3
    assert convert_byte_unit(1500, "KB") == 1.5
    with pytest.raises(ValueError, match="unknown unit 'parsecs'"):
        convert_byte_unit(1, "parsecs")
    with TelemetryClient(None, 5) as client:
        client.push({"loss": 1.0}, labels={"step": "1"})
    assert issubclass(appliance.errors.ApplianceNanError, BackendError)
