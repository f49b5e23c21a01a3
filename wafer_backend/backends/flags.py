"""The flags a script sets before its first step: `backends.csx.GROUP.NAME = value`.

Groups `precision`, `performance` and `debug` are those of the cstorch API; most of them steer a
compiler or servers that are not here, and are accepted so that scripts run. `emulation` is this
package's own. A flag says what it does in `describe()`; a misspelt one is an error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.backends.debug_args import DebugArgs
from wafer_backend.errors import BackendConfigError

WITHOUT_EFFECT = "accepted without effect"


@dataclass(frozen=True)
class Flag:
    """One flag: its default, what it means, and a check that returns what was expected or None.

    `make`: makes the default of a flag that scripts change in place.
    """

    default: Any
    meaning: str
    wrong: Callable[[Any], str | None] = lambda value: None
    make: Callable[[], Any] | None = None


class FlagGroup:
    """Flags that are read and set as attributes; only the names given exist."""

    def __init__(self, name: str, flags: Mapping[str, Flag]) -> None:
        self.__dict__["_name"] = name
        self.__dict__["_flags"] = dict(flags)
        self.__dict__["_values"] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        flag = self._known(name)
        if flag.make is not None:
            return self._values.setdefault(name, flag.make())
        return self._values.get(name, flag.default)

    def __setattr__(self, name: str, value: Any) -> None:
        expected = self._known(name).wrong(value)
        if expected is not None:
            raise BackendConfigError(f"{self._name}.{name} = {value!r}: expected {expected}")
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return sorted(self._flags)

    def describe(self) -> dict[str, str]:
        """Flag name -> what it means."""
        return {name: flag.meaning for name, flag in self._flags.items()}

    def reset(self) -> None:
        """Back to the defaults."""
        self._values.clear()

    def _known(self, name: str) -> Flag:
        if name in self._flags:
            return self._flags[name]  # type: ignore[no-any-return]
        hint = did_you_mean_or_all(name, sorted(self._flags))
        raise AttributeError(f"{self._name} has no flag {name!r}{hint}")


class CsxFlags:
    """`backends.csx`: the groups of flags."""

    __slots__ = ("cluster", "debug", "emulation", "performance", "precision", "storage")

    def __init__(self) -> None:
        for name, flags in _GROUPS.items():
            object.__setattr__(self, name, FlagGroup(f"backends.csx.{name}", flags))

    cluster: FlagGroup
    storage: FlagGroup
    precision: FlagGroup
    performance: FlagGroup
    debug: FlagGroup
    emulation: FlagGroup

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"backends.csx.{name} cannot be set; groups: {', '.join(_GROUPS)}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"backends.csx has no group {name!r}; groups: {', '.join(_GROUPS)}")

    def reset(self) -> None:
        """Every flag back to its default."""
        for name in _GROUPS:
            getattr(self, name).reset()


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _wrong_micro_batch(value: object) -> str | None:
    if value == "explore" or isinstance(value, dict):
        return (
            "'auto', None or samples per leaf: searching for a micro-batch size ('explore') is "
            "not supported, because there is no compiler"
        )
    return None if value in ("auto", None) or _is_count(value) else "'auto', None or an int >= 1"


def _wrong_count(value: object) -> str | None:
    return None if _is_count(value) else "an int >= 1"


def _wrong_seed(value: object) -> str | None:
    return None if value is None or _is_count(value, 0) else "None or an int >= 0"


def _expect_one_of(*values: object) -> Callable[[Any], str | None]:
    expected = "one of " + ", ".join(map(repr, values))
    return lambda value: None if value in values else expected


def _ignored(default: object) -> Flag:
    return Flag(default, WITHOUT_EFFECT)


_MEMORY_OF_ROLES = ("compile_crd", "execute_crd", "wrk", "act", "cmd", "wgt", "chf")


def _make_s3_group() -> FlagGroup:
    return FlagGroup("backends.csx.storage.s3", {"profile": _ignored(None)})


_GROUPS: dict[str, dict[str, Flag]] = {
    "precision": {
        "optimization_level": Flag(
            1,
            "precision optimization level 0, 1 or 2; kept for `current_pol`; changes no result",
            _expect_one_of(0, 1, 2),
        ),
    },
    "performance": {
        "micro_batch_size": Flag(
            "auto",
            "samples per leaf; 'auto': the largest number that fits emulation.wafer_memory and "
            "gives at least emulation.min_leaves leaves; None: the whole global batch is one leaf",
            _wrong_micro_batch,
        ),
        "transfer_processes": _ignored(5),
        "max_transfer_bytes": _ignored(None),
        "compress_weights": _ignored(False),
        "use_speculative_optimizers": _ignored(True),
    },
    "debug": {
        "lazy_initialization": _ignored(True),
        "retrace_every_iteration": _ignored(False),
        "drop_data": _ignored(False),
        "skip_weight_init": _ignored(False),
        "fabric_type_blacklist": _ignored(None),
        "debug_args": Flag(None, WITHOUT_EFFECT, make=DebugArgs),
        "ini": Flag(None, WITHOUT_EFFECT, make=DebugArgs),
        **{f"{role}_memory_gi": _ignored(None) for role in _MEMORY_OF_ROLES},
    },
    "emulation": {
        "wafer_memory": Flag(40 * 10**9, "bytes of one emulated wafer", _wrong_count),
        "min_leaves": Flag(
            8, "fewest leaves of a global batch that 'auto' may choose", _wrong_count
        ),
        "activations": Flag(
            "keep",
            "what happens to the activations of a leaf between forward and backward: keep, "
            "recompute, or evict to activation workers; results are bit-equal",
            _expect_one_of("keep", "recompute", "evict"),
        ),
        "device": Flag(
            "cpu",
            "device on which wafers of backend CSX compute: cpu, or cuda (weights are streamed to "
            "it)",
            _expect_one_of("cpu", "cuda"),
        ),
        "cbfloat16": Flag(
            "bfloat16",
            "what half dtype 'cbfloat16' is computed in: bfloat16, which is fast, or exact, its "
            "values emulated in float32; set it before the half dtype",
            _expect_one_of("bfloat16", "exact"),
        ),
        "threads": Flag(
            1, "CPU threads of every role; another number gives other bits", _wrong_count
        ),
        "precision": Flag(
            None,
            "None: the half dtype where the script asks for it; float32, float16 or bfloat16: "
            "that, whatever it asks for",
            _expect_one_of(None, "float32", "float16", "bfloat16"),
        ),
        "seed": Flag(
            None,
            "seed of the random numbers of a leaf; None: torch.initial_seed() at the first step",
            _wrong_seed,
        ),
    },
    "cluster": {"auto_taint": _ignored(False)},
    "storage": {"s3": Flag(None, WITHOUT_EFFECT, make=_make_s3_group)},
}
