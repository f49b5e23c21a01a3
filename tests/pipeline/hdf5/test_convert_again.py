"""`convert_dataset_to_HDF5` in a directory that has files: of others, of a run that was killed."""

import functools
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import failpoint
from pipeline.core import journal as lock
from pipeline.core.errors import ConfigError, InputError, ResourceError
from pipeline.core.hashes import hash_file
from pipeline.hdf5 import convert_dataset_to_HDF5
from tests.forked import forked
from tests.pipeline.hdf5.samples import LM, NAME, Samples, Stream, hashes, model_zoo


def test_the_directory_of_another_conversion(tmp_path: Path) -> None:
    convert = functools.partial(convert_dataset_to_HDF5, num_workers=0)
    convert(Samples(5, LM), tmp_path / "a", samples_per_file=2)
    before = hashes(tmp_path / "a")
    with pytest.raises(ConfigError, match="samples_per_file was 2 then, and is 3 now"):
        convert(Samples(5, LM), tmp_path / "a", samples_per_file=3)
    with pytest.raises(ConfigError, match="holds another conversion: name"):
        convert(Samples(5, LM), tmp_path / "a", samples_per_file=2, name="other")
    with pytest.raises(ConfigError, match="samples was 5 then, and is 6 now"):
        convert(Samples(6, LM), tmp_path / "a", samples_per_file=2)
    other = [{k: v + 1 for k, v in Samples(5, LM)[i].items()} for i in range(5)]
    with pytest.raises(InputError, match="gives samples that differ"):
        convert(other, tmp_path / "a", samples_per_file=2)
    assert hashes(tmp_path / "a") == before


def test_a_directory_with_files_of_others(tmp_path: Path) -> None:
    """Model Zoo's function would append to them."""
    model_zoo(Samples(4, LM), tmp_path / "theirs", 2)
    before = hashes(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="files that this conversion did not write"):
        convert_dataset_to_HDF5(Samples(4, LM), tmp_path / "theirs", num_workers=0)
    assert hashes(tmp_path / "theirs") == before
    assert not (tmp_path / "theirs" / ".lock").exists()
    with lock.hold_lock(tmp_path / "busy"), pytest.raises(ResourceError, match="in use by pid"):
        convert_dataset_to_HDF5(Samples(4, LM), tmp_path / "busy", num_workers=0)


def test_the_same_call_again_reads_two_batches(tmp_path: Path) -> None:
    class Counting(Samples):
        read: list[int] = []  # noqa: RUF012

        def __getitem__(self, index: int) -> dict[str, Any]:
            self.read.append(index)
            return super().__getitem__(index)

    convert = functools.partial(
        convert_dataset_to_HDF5, output_dir=tmp_path, samples_per_file=10, num_workers=0,
        batch_size=5,
    )  # fmt: skip
    first = convert(Counting(40, LM))
    before = hashes(tmp_path)
    Counting.read.clear()
    again = convert(Counting(40, LM))
    assert (first.written, again.written) == (4, 0)
    assert sorted(Counting.read) == [*range(5), *range(35, 40)]
    (tmp_path / f"{NAME}-2.h5").unlink()
    damaged = tmp_path / f"{NAME}-3.h5"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    os.utime(tmp_path / f"{NAME}-1.h5", (1, 1))
    Counting.read.clear()
    assert convert(Counting(40, LM)).written == 2
    assert set(Counting.read) == {*range(5), *range(10, 30), *range(35, 40)}
    assert hashes(tmp_path) == before


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_killed_at_every_fault_point_and_called_again(tmp_path: Path, kind: str) -> None:
    samples = Samples(11, LM)

    def convert(out: Path) -> None:
        dataset = Stream(samples) if kind == "stream" else samples
        convert_dataset_to_HDF5(dataset, out, samples_per_file=4, num_workers=0, batch_size=3)

    convert(tmp_path / "clean")
    clean = content(tmp_path / "clean")
    for k in itertools.count(1):
        out = tmp_path / f"{k}"
        action = ("kill", "torn:0.5")[k % 2]
        plan = f"*@{k}=kill" if action == "kill" else f"storage.publish.start@{k}=torn:0.5"
        status = forked(functools.partial(convert, out), plan)
        if status == 0 and action == "kill":
            break
        assert status in (0, -signal.SIGKILL), plan
        assert status == 0 or not (out / "data_params.json").exists() or kind_is_last(out), plan
        for name, digest in content(out).items():
            assert digest == clean[name], plan
        convert(out)
        assert content(out) == clean, plan
        assert not list(out.rglob(".tmp-*")), plan
    assert k > 20


def kind_is_last(out: Path) -> bool:
    """A kill after the last rename finds everything there."""
    return len(list(out.glob("*.h5"))) == 3


def content(directory: Path) -> dict[str, str]:
    """Hashes of the files, data_params.json apart from the name of its own directory."""
    found = {p.name: hash_file(p) for p in directory.glob("*.h5")}
    params = directory / "data_params.json"
    if params.exists():
        found[params.name] = params.read_text().replace(str(directory), "")
    return found


@pytest.mark.crash
def test_killed_with_workers_and_a_torn_journal(tmp_path: Path) -> None:
    def convert(name: str) -> None:
        convert_dataset_to_HDF5(
            Samples(19, LM), tmp_path / name, samples_per_file=5, num_workers=2, batch_size=2
        )

    convert("clean")
    assert forked(lambda: convert("out"), "convert.file@3=kill") == -signal.SIGKILL
    with open(tmp_path / "out" / "journal" / "files.log", "a") as journal:
        journal.write('{"index": 0, "torn')
    convert("out")
    assert content(tmp_path / "out") == content(tmp_path / "clean")


def test_every_publish_can_fail_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = functools.partial(
        convert_dataset_to_HDF5, Samples(9, LM), tmp_path / "out", samples_per_file=3, num_workers=0
    )
    messages: list[str] = []
    for k in itertools.count(1):
        plan = failpoint._Plan("storage.publish.fsync", k, "raise:ENOSPC")
        monkeypatch.setattr(failpoint, "_plan", plan)
        failpoint._hits.clear()
        try:
            convert()
            break
        except ResourceError as error:
            messages.append(str(error))
        assert not list(tmp_path.rglob(".tmp-*"))
    monkeypatch.setattr(failpoint, "_plan", None)
    assert len(messages) >= 2
    assert all("no room to write" in message for message in messages)
    convert_dataset_to_HDF5(Samples(9, LM), tmp_path / "fine", samples_per_file=3, num_workers=0)
    for path in (tmp_path / "fine").glob("*.h5"):
        assert hash_file(path) == hash_file(tmp_path / "out" / path.name)


REPOSITORY = Path(__file__).resolve().parents[3]

FULL = """
mount -t tmpfs -o size=24k tmpfs "$DISK"
"$@" 2>"$ERR"; code=$?
test -z "$(find "$DISK" -name '.tmp-*')" || code=99
mount -o remount,size=20m "$DISK"
"$@" 2>>"$ERR" || code=98
cp -r "$DISK/out" "$COPY"
exit $code
"""


FILL = """
import sys
sys.excepthook = lambda kind, error, _: print(kind.__name__, error, file=sys.stderr)
from tests.pipeline.hdf5.samples import LM, Samples
from pipeline.hdf5 import convert_dataset_to_HDF5
convert_dataset_to_HDF5(Samples(60, LM), sys.argv[1], samples_per_file=5, num_workers=0)
"""


@pytest.mark.slow
@pytest.mark.crash
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("needs user and mount namespaces")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "-Urm", "bash", "-c", FULL, "bash", sys.executable, "-c", FILL,
         disk / "out",],
        env={**os.environ, "DISK": str(disk), "ERR": str(tmp_path / "err"),
             "COPY": str(tmp_path / "copy"), "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )  # fmt: skip
    message = (tmp_path / "err").read_text()
    assert done.returncode == 1, message
    assert message.startswith(f"ResourceError {disk}/out/") and "no room to write" in message
    convert_dataset_to_HDF5(Samples(60, LM), tmp_path / "fine", samples_per_file=5, num_workers=0)
    for path in (tmp_path / "fine").glob("*.h5"):
        assert hash_file(path) == hash_file(tmp_path / "copy" / path.name)
