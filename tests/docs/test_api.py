"""The public API: exactly these names, each with types and words, on a page; used as users do."""

import inspect
import json
import os
import re
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests.programs import Program, script
from tests.scripts import load

REPOSITORY = Path(__file__).resolve().parents[2]

NAMES = {
    "pipeline": "Config FinishedRun Plan clean clean_texts dedup errors hdf5 open_run plan results "
    "run search tokenize_texts trace verify",
    "pipeline.errors": "ConfigError InputError IntegrityError NondeterminismError PrepError "
    "ReadOnlyError ResourceError",
    "pipeline.results": "Check CheckpointTrace ClusterSizeLedger DocumentEvidence Explanation "
    "Exposure ForwardTrace "
    "FoundDocument FoundText Ledger Link Manifest MixtureLedger Period Preset Recipe RecordPlace "
    "RunRecord SearchAnswer SearchScope Shard ShardEnd Snippet SourceLedger SpanPart SplitLedger "
    "SplitShare StageForecast StageManifest Tally TaskRecord TokenSpan Total "
    "TracedDocument TrainingCheckpoint",
    "pipeline.hdf5": "HDF5Dataset ModelZooSampler convert_dataset_to_HDF5",
    "trainer": "Amount Callback Evaluation GeneratedText LoadedModel LossMeasurement LostRankError "
    "Params StopTraining TrainingError TrainingResult TrainingState evaluate generate load train",
    "dedup": "PRESETS Preset describe detection_probability find_duplicates jaccard shingle_hash "
    "shingles signatures sketch_documents",
    "wafer_backend": "Backend BackendConfig BackendConfigError BackendError BackendType "
    "CheckpointError CompiledModule LoaderError LossRule PyTorchBaseModel StepError StepResult "
    "StrictError add_debug_name amp backend backends get_debug_name "
    "checkpoint_closure compile compile_step current_backend current_executor current_pol "
    "current_torch_device device_of distributed from_numpy full full_like install_aliases "
    "is_streamer legacy load make_constant manual_seed metrics name_scope num_streamers num_tasks "
    "ones ones_like optim performance_model pol profiler reset run save set_debug_scope sparse "
    "step_closure summarize_scalar summarize_tensor task_id tensor to_numpy trace use_cs utils "
    "zeros zeros_like",
}
MEMBERS = [(package, name) for package, names in NAMES.items() for name in names.split()]
ERRORS = re.compile(r"Raises|ValueError|Errors|errors of")
NO_ERRORS = ("dedup.detection_probability",)


def member(package: str, name: str) -> Any:
    return getattr(import_module(package), name)


@pytest.mark.parametrize("package", NAMES)
def test_exported_names(package: str) -> None:
    """A name more or less is a decision, and an entry in CHANGELOG.md."""
    module = import_module(package)
    assert sorted(module.__all__) == sorted(NAMES[package].split())


@pytest.mark.parametrize(("package", "name"), MEMBERS)
def test_types_and_words(package: str, name: str) -> None:
    """Signatures can be read by tools, and every name says what it is."""
    found = member(package, name)
    if isinstance(found, dict):
        return
    assert inspect.getdoc(found), f"{package}.{name} has no docstring"
    if isinstance(found, types.FunctionType):
        assert inspect.signature(found).return_annotation is not inspect.Signature.empty
        get_type_hints(found)
    elif inspect.isclass(found):
        get_type_hints(found)
        get_type_hints(found.__init__)


@pytest.mark.parametrize(
    ("package", "name"), [m for m in MEMBERS if m[0] in ("pipeline", "trainer", "dedup")]
)
def test_docstrings_name_arguments_and_errors(package: str, name: str) -> None:
    found = member(package, name)
    if not isinstance(found, types.FunctionType):
        return
    words = inspect.getdoc(found) or ""
    given = inspect.signature(found).parameters
    if package == "dedup":
        missing = [n for n in given if not re.search(rf"\b{n}\b", words)]
    else:
        listed = re.findall(r"^([a-z_0-9, ]+): ", words, re.M)
        named = {n for names in listed for n in names.split(", ")}
        missing = sorted(given.keys() ^ named)
        assert re.search(r"^Returns ", words, re.M), "says what it returns"
    assert missing == []
    assert ERRORS.search(words) or f"{package}.{name}" in NO_ERRORS, "says what it raises"


def test_methods_of_a_run_are_described() -> None:
    for name, method in inspect.getmembers(member("pipeline", "FinishedRun"), inspect.isfunction):
        if name.startswith("_") or name in ("search", "trace"):  # they refer to the functions
            continue
        words = inspect.getdoc(method) or ""
        given = [n for n in inspect.signature(method).parameters if n != "self"]
        assert [n for n in given if not re.search(rf"^{n}: ", words, re.M)] == [], name
        get_type_hints(method)


def test_types_of_results_are_public() -> None:
    """What a function returns, and what is in it, can be imported to annotate with."""
    public = {id(member(package, name)) for package, name in MEMBERS}
    seen: set[type] = set()
    waiting = [
        get_type_hints(found)["return"]
        for package in ("pipeline", "trainer")
        for name in NAMES[package].split()
        if isinstance(found := member(package, name), types.FunctionType)
    ]
    while waiting:
        hint = waiting.pop()
        waiting += getattr(hint, "__args__", ())
        if not inspect.isclass(hint) or hint in seen:
            continue
        seen.add(hint)
        if hint.__module__.split(".")[0] in NAMES and hasattr(hint, "__dataclass_fields__"):
            hidden = "LoadedModel" in hint.__name__
            assert id(hint) in public, f"{hint.__module__}.{hint.__name__}"
            waiting += [] if hidden else get_type_hints(hint).values()
    assert len(seen) > 20


def test_the_page_is_up_to_date() -> None:
    script = load(REPOSITORY / "docs" / "make_api.py")
    written = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == script.document(), "run `python docs/make_api.py`"


def fresh(program: str, cwd: Path) -> str:
    """What a program, or a script, prints that a user starts elsewhere."""
    done = subprocess.run(
        [sys.executable, *(() if program.endswith(".py") else ("-c",)), program],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_imports_are_light(tmp_path: Path) -> None:
    heavy = {"torch", "pyarrow", "dask", "distributed", "numba", "numpy", "pydantic", "h5py"}
    program = f"""
import sys, pipeline, trainer
from pipeline import errors
assert not {heavy!r} & set(sys.modules), {heavy!r} & set(sys.modules)
assert {{"run", "open_run"}} <= set(dir(pipeline)) and "train" in dir(trainer)
print(pipeline.verify.__name__, callable(pipeline.verify))
"""
    assert fresh(program, cwd=tmp_path) == "verify True\n"


def test_the_example_as_a_user_runs_it(tmp_path: Path) -> None:
    """Plan, run, verify, read, search, trace, train, evaluate, load and generate, quietly."""
    example = Program(script(REPOSITORY / "examples" / "api.py", tmp_path))
    printed, complaints = example.communicate(timeout=240)
    assert (example.returncode, complaints) == (0, "")
    said = printed.splitlines()
    assert said[0].startswith("to do: ")
    assert "verified hashes" in said and "verified lineage" in said
    assert "documents: {'kept': 60, 'duplicate': 1}" in said
    assert "found in: sums/sums.jsonl 8" in said
    assert "why: kept" in said
    assert any(re.fullmatch(r"tokens 0-\d+: sums/sums.jsonl:\d+", line) for line in said)
    assert any(re.fullmatch(r"step 3: loss \d+\.\d{3}", line) for line in said)
    assert any(line.startswith("step 2 read: sums/sums.jsonl ") for line in said)
    assert re.fullmatch(r"wrote: \d tokens, ended by (length|eos)", said[-1])
    assert {path.name for path in tmp_path.iterdir()} == {"sums.jsonl", "run", "model"}


def test_a_script_needs_no_guard_for_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """multiprocessing would have each of them run the script again and start workers of its own,
    and the one that takes the place of another that was killed."""
    fault = f"task.start.clean@1=killonce:{tmp_path / 'killed'}"
    monkeypatch.setenv("WAFERMILL_FAILPOINT", fault)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "one text " * 50}) + "\n")
    (tmp_path / "mine.py").write_text(
        "import pipeline\n"
        "print('once', __file__[-7:], __spec__)\n"
        "inputs = [{'name': 'texts', 'path': 'texts.jsonl', 'format': 'jsonl'}]\n"
        "run = pipeline.run({'name': 'mine', 'inputs': inputs}, 'out', 1)\n"
        "print(run.directory.name, __file__[-7:], __spec__)\n"
    )
    printed = fresh("mine.py", cwd=tmp_path)
    assert (tmp_path / "killed").exists()
    assert printed == "once mine.py None\nout mine.py None\n"
