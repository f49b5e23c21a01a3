"""Compiled kernels: loaded from the cache, made anew when any source changes, never at import."""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import dedup.compiled

ROOT = Path(__file__).resolve().parents[2]
USE = """
import dedup
from dedup.compiled import find_kernel_directory, first_use
before = first_use()
import numpy as np
from dedup.polynomial import fmix64
fmix64(np.uint64(1))
print(before, first_use(), sum(fmix64.stats.cache_hits.values()), find_kernel_directory())
"""


def python(code: str, cache: Path) -> str:
    environment = os.environ | {"WAFERMILL_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache in which one process compiled a kernel, and what it said; copy it to add others."""
    cache = tmp_path_factory.mktemp("kept") / "cache"
    return cache, python(USE, cache)


def test_second_process_compiles_nothing(kept: tuple[Path, str]) -> None:
    cache, said = kept
    first = said.removeprefix("True False 0 ")
    assert Path(first).parent == cache / "kernels"
    files = {p: p.stat().st_mtime_ns for p in cache.rglob("*.nbc")}
    assert python(USE, cache) == f"False False 1 {first}"
    assert files and files == {p: p.stat().st_mtime_ns for p in cache.rglob("*.nbc")}


def test_another_installation_of_the_same_sources_compiles_nothing(
    kept: tuple[Path, str], tmp_path: Path
) -> None:
    """As in a second virtual environment, or a checkout elsewhere."""
    shutil.copytree(ROOT / "dedup", tmp_path / "dedup", copy_function=shutil.copyfile)
    elsewhere = f"import sys; sys.path.insert(0, {str(tmp_path)!r}){USE}print(dedup.__file__)"
    shutil.copytree(kept[0], tmp_path / "cache")
    said = python(elsewhere, tmp_path / "cache")
    assert said.startswith("False False 1 ")
    assert said.endswith(f"\n{tmp_path}/dedup/__init__.py")


@pytest.mark.parametrize("kind", ["*.nbc", "*.nbi"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_kept_kernels_that_are_cut_short_are_compiled_again(
    kept: tuple[Path, str], tmp_path: Path, kind: str, share: float
) -> None:
    shutil.copytree(kept[0], tmp_path / "cache")
    files = list((tmp_path / "cache").rglob(kind))
    for file in files:
        os.truncate(file, int(share * file.stat().st_size))
    assert files and python(USE, tmp_path / "cache").split()[2] == "0"
    assert python(USE, tmp_path / "cache").split()[2] == "1"


def test_each_kind_of_processor_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that share a home; not what differs from one moment to the next."""
    intel = "vendor_id\t: GenuineIntel\ncpu MHz\t\t: 1\nflags\t\t: avx avx2\n"
    told = (
        intel,
        intel.replace("MHz\t\t: 1", "MHz\t\t: 2") + "\nflags\t\t: none, of the second\n",
        intel.replace("avx2", ""),
        "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nFeatures\t: asimd\n",
        "CPU implementer\t: 0x41\nCPU part\t: 0xd4f\nFeatures\t: asimd\n",
        "",
    )
    digests = []
    for text in told:
        monkeypatch.setattr(dedup.compiled, "open", lambda _, t=text: io.StringIO(t), raising=False)
        digests.append(dedup.compiled._machine_digest.__wrapped__())
    assert digests[0] == digests[1] and len(set(digests)) == len(told) - 1


def test_several_processes_compile_once(tmp_path: Path) -> None:
    """As workers on a machine that has no kernels yet."""
    environment = os.environ | {"WAFERMILL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", USE]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    loaded = [process.communicate()[0].split()[2] for process in running]
    assert sorted(loaded) == ["0", "1", "1"]


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """Every process compiles for itself; nothing fails."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert python(USE, blocked).startswith("True True 0 ")


def test_any_source_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in one file is a new cache for all: kernels call kernels of other files."""
    monkeypatch.setattr(dedup.compiled, "_digest", dedup.compiled._digest.__wrapped__)
    own, other = tmp_path / "own", tmp_path / "other"
    monkeypatch.setattr(dedup.compiled, "PACKAGE", own)
    for package in (own, other):
        package.mkdir()
        (package / "text.py").write_text("A = 1")
    for changed in (own, other):
        names = []
        for source in ("A = 1", "A = 2", "A = 1"):
            (changed / "text.py").write_text(source)
            names.append(dedup.compiled.source_digest.__wrapped__(other))
        assert names[0] == names[2] != names[1]


def test_numba_waits_for_the_first_kernel(tmp_path: Path) -> None:
    """It learns of a kernel when that is called, and of scipy.linalg where it multiplies."""
    code = """
import pickle, sys, threading
import numpy as np
from dedup.polynomial import fmix64
again = pickle.loads(pickle.dumps(fmix64))
before = "numba" in sys.modules
answers = []
calls = [threading.Thread(target=lambda: answers.append(fmix64(np.uint64(1)))) for _ in range(4)]
for call in calls: call.start()
for call in calls: call.join()
print(again is fmix64, before, len(set(answers)), "scipy.linalg" in sys.modules)
import numba
product = numba.njit(lambda a, b: a @ b)(np.eye(2), np.full((2, 2), 3.0))
print(product.tolist())
"""
    assert python(code, tmp_path) == "True False 1 False\n[[3.0, 3.0], [3.0, 3.0]]"


def test_a_kept_kernel_serves_one_that_is_compiled_later(
    kept: tuple[Path, str], tmp_path: Path
) -> None:
    """What loads it imports nothing of numba's that only a compiler needs, which the next one does
    need."""
    uses_it = """
import sys
import numpy as np
from dedup.polynomial import fmix64
first = fmix64(np.uint64(1))
before = "numba.np.polynomial" in sys.modules
import numba
@numba.njit
def total(values):
    mixed = np.sort(np.array([fmix64(value) for value in values]))
    return mixed[0] ^ mixed[1] ^ np.uint64(np.sqrt(np.float64(len(values)))) ^ np.uint64(1)
pair = np.array([1, 2], np.uint64)
print(before, total(pair) == fmix64(pair[0]) ^ fmix64(pair[1]), first == fmix64(pair[0]))
"""
    shutil.copytree(kept[0], tmp_path / "cache")
    assert python(uses_it, tmp_path / "cache") == "False True True"


KERNELS = """
import numpy as np
from dedup.compiled import kernel
from dedup.polynomial import fmix64

@kernel
def mix_all(values):
    mixed = np.sort(values)
    for i in range(len(mixed)):
        mixed[i] = fmix64(mixed[i])
    return mixed

@kernel
def add_mixed(values):
    return mix_all(values).sum() + np.uint64(len(values))
"""
LOADED = """
import sys
import numpy as np
import dedup.kernel_libraries
from dedup.polynomial import fmix64
from own.kernels import mix_all, add_mixed
dedup.kernel_libraries.IS_KNOWN = sys.modules["__main__"].IS_KNOWN
values = np.array([3, 1, 2], np.uint64)
expected = [fmix64(value) for value in np.sort(values)]
assert mix_all(values).tolist() == expected
print(sum(mix_all.stats.cache_hits.values()), "numba.np.arraymath" in sys.modules)
(loaded,) = mix_all._made().overloads.values()
wrapper = loaded.fndesc.llvm_cpython_wrapper_name
assert loaded.library.get_pointer_to_function(wrapper)
assert not loaded.library.get_pointer_to_function(wrapper + "_")
is_parsed = [loaded.library._shared_module is not None]
assert add_mixed(values) == sum(expected) + np.uint64(3)
print(*is_parsed, loaded.library._shared_module is not None, "scipy.linalg" in sys.modules)
"""


IN_ANOTHER = """
import numpy as np
from dedup.compiled import kernel
import dedup.kernel_libraries

@kernel
def at(values, i):
    if i > 3:
        raise ValueError("too large")
    return values[i] // (i - 2)

@kernel
def _follow(values, i):
    return at(values, i) + 1

@kernel
def follow(values, i):
    return _follow(values, i) + 1

@kernel
def at_end(values):
    return at(values, len(values) - 1)

def show():
    values = np.arange(4) * 10
    for i in (1, 2, 3, 4):
        try:
            print(follow(values, i), end=" ")
        except (ValueError, ZeroDivisionError) as error:
            print(error, end=", ")
    print(at(values, 3), at_end(values))
    made = [follow, _follow, at, at_end]
    print(*(len(one.signatures) for one in made), *(one._called is not None for one in made))
"""


@pytest.mark.parametrize("is_known", [True, False])
def test_what_only_kernels_call_is_compiled_for_them_alone(is_known: bool, tmp_path: Path) -> None:
    """Values and errors are the same in the process that compiles and in the next, and where numba
    compiles in its own way. Only what Python calls is kept."""
    (tmp_path / "kernels.py").write_text(IN_ANOTHER)
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import kernels, dedup.kernel_libraries\n"
    )
    code += f"dedup.kernel_libraries.IS_KNOWN = {is_known}\nkernels.show()"
    compiling, loading = python(code, tmp_path / "cache"), python(code, tmp_path / "cache")
    values = "-8 integer division by zero, 32 too large, 30 30"
    assert compiling.splitlines()[0] == loading.splitlines()[0] == values
    kept = {path.name.partition("-")[0] for path in tmp_path.rglob("*.nbi")}
    if is_known:
        assert compiling.splitlines()[1] == "1 0 1 1 False True True False"
        assert loading.splitlines()[1] == "1 0 1 1 False False False False"
        assert kept == {"kernels.follow", "kernels.at", "kernels.at_end"}
    else:
        assert compiling.splitlines()[1] == "1 1 1 1 False False False False"
        assert kept == {"kernels.follow", "kernels._follow", "kernels.at", "kernels.at_end"}


@pytest.fixture(scope="module")
def own(kept: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with kernels, and a cache in which the first of them is compiled."""
    home = tmp_path_factory.mktemp("own")
    (home / "own").mkdir()
    (home / "own" / "kernels.py").write_text(KERNELS)
    shutil.copytree(kept[0], home / "cache")
    only_first = loading(home, True).partition("(loaded,)")[0]
    assert python(only_first, home / "cache") == "0 True"
    return home


def loading(home: Path, is_known: bool) -> str:
    return f"import sys; sys.path.append({str(home)!r}); IS_KNOWN = {is_known}\n{LOADED}"


@pytest.mark.parametrize(
    ("is_known", "told"), [(True, "1 False False False"), (False, "1 True True True")]
)
def test_a_kept_kernel_is_loaded_without_what_compiling_it_takes(
    is_known: bool, told: str, own: Path, tmp_path: Path
) -> None:
    """Nor is it when another kernel is compiled that calls it. Of another numba than we know it is
    loaded in numba's way."""
    shutil.copytree(own / "cache", tmp_path / "cache")
    said = python(loading(own, is_known), tmp_path / "cache")
    assert " ".join(said.split()) == f"{told} False"


def test_import_is_light(tmp_path: Path) -> None:
    heavy = "{'numba', 'numpy', 'datasketch', 'pyarrow'}"
    code = f"import sys, dedup; dedup.PRESETS; print(sorted(set(sys.modules) & {heavy}))"
    assert python(code, tmp_path) == "[]"


@pytest.mark.slow
def test_warm_up_runs_every_kernel(tmp_path: Path) -> None:
    """In one process on an empty cache, where kernels that only kernels call are compiled too; the
    UTF-8 decoder is called by those of cleaning."""
    code = """
import importlib, pkgutil
import dedup.find
from pipeline.cleaning import clean_array
dedup.find.warm_up()
clean_array(["sch\u00f6n"])
modules = [importlib.import_module(f"dedup.{m.name}") for m in pkgutil.iter_modules(dedup.__path__)]
kernels = [k for m in modules for k in vars(m).values() if isinstance(k, dedup.compiled._Kernel)]
print(len(kernels) > 40, [k.__qualname__ for k in kernels if not (k.signatures or k._called)])
"""
    assert python(code, tmp_path) == "True []"
    # and what was kept of them is complete: another process loads it all without compiling
    loading = (
        code.replace("dedup.find.warm_up()", "").replace("clean_array([", "([")
        + """
loaded = 0
for one in kernels:
    kept = one._made()._cache
    for signature, *_ in kept._cache_file._load_index():
        result = kept.load_overload(signature, one.targetctx)
        wrapper = result.fndesc.llvm_cpython_wrapper_name
        loaded += bool(result.library.get_pointer_to_function(wrapper))
print(loaded)
"""
    )
    assert int(python(loading, tmp_path).split()[-1]) > 20


def test_kernels_call_those_of_their_own_package_and_of_dedup_only() -> None:
    """No other sources are part of the name of their cache, which would hold stale code."""
    trees = _parse_sources()
    kernels = {
        (".".join(file.relative_to(ROOT).with_suffix("").parts), node.name): file.parent
        for file, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and _is_kernel(node)
    }
    calls = 0
    for file, tree in trees.items():
        imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in tree.body:
            if not (isinstance(node, ast.FunctionDef) and _is_kernel(node)):
                continue
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            for home in (kernels.get(imported[name]) for name in names & imported.keys()):
                calls += home is not None
                assert home in (None, file.parent, ROOT / "dedup"), (file, node.name, home)
    assert len(kernels) > 100 and calls > 30


def test_kernels_assign_no_arrays_to_slices() -> None:
    """numba compiles two seconds for the error of the first that does, in each process. A name in
    capitals is a constant."""
    kernels = fills = 0
    for file, tree in _parse_sources().items():
        for node in tree.body:
            if not (isinstance(node, ast.FunctionDef) and _is_kernel(node)):
                continue
            kernels += 1
            for part in ast.walk(node):
                if isinstance(part, ast.Assign) and any(map(_is_slice, part.targets)):
                    fills += 1
                    value = ast.unparse(part.value)
                    assert re.fullmatch(r"0|np\.uint64\(0\)|[A-Z0-9_]+", value), f"{file}: {value}"
    assert kernels > 100 and fills > 5


def _is_slice(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and any(
        isinstance(part, ast.Slice) for part in ast.walk(target.slice)
    )


@cache
def _parse_sources() -> dict[Path, ast.Module]:
    files = [file for top in ("dedup", "pipeline") for file in (ROOT / top).rglob("*.py")]
    return {file: ast.parse(file.read_text()) for file in files}


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list)
