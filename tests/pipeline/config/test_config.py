"""Poison configs: one clear line, exit code 2, nothing created on disk."""
# ruff: noqa: E501 - one case, one line

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.commands.app import app, run_app
from pipeline.config import model as config_model
from pipeline.config import yaml
from pipeline.config.prep import Config, load_config
from pipeline.core.errors import ConfigError

GOOD = """\
name: good
inputs:
  - name: web
    path: raw
"""
Outcome = tuple[int, str]


@pytest.fixture
def prep_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[bytes, tuple[str, ...]], Outcome]:
    """`prep run` of a config's bytes; asserts that nothing but the config is there afterwards."""

    def run(config: bytes, options: tuple[str, ...] = ()) -> Outcome:
        path = tmp_path / "c.yaml"
        path.write_bytes(config)
        arguments = ["run", str(path), "--out", str(tmp_path / "out"), "--workers", "0", *options]
        code = run_app(functools.partial(app, args=arguments), "prep")
        assert [p.name for p in tmp_path.iterdir()] == ["c.yaml"]
        captured = capsys.readouterr()
        assert captured.out == ""
        return code, captured.err.removeprefix("prep: ").replace(f"{path}", "c.yaml")

    return run


POISON = {
    # keys
    "unknown key": (GOOD + "zzz: 1\n", "c.yaml:5: zzz: unknown key; expected one of name, seed"),
    "misspelt section": (GOOD + "dedupe: {}\n", "c.yaml:5: dedupe: unknown key; did you mean 'dedup'"),
    "misspelt key": (
        GOOD + "pack:\n  max_sequence_lenght: 8\n",
        "c.yaml:6: pack.max_sequence_lenght: unknown key; did you mean 'max_sequence_length'?",
    ),
    "misspelt in a list": (
        "inputs:\n  - name: a\n    path: y\n    text_kye: x\n",
        "c.yaml:4: inputs.0.text_kye: unknown key; did you mean 'text_key'?",
    ),
    "duplicate key": (GOOD + "seed: 1\nseed: 2\n", "c.yaml:6: duplicate key seed (first on line 5)"),
    "duplicate deep key": (
        GOOD + "pack:\n  max_sequence_length: 8\n  max_sequence_length: 9\n",
        "c.yaml:7: duplicate key pack.max_sequence_length (first on line 6)",
    ),
    "missing inputs": ("name: x\n", "c.yaml:1: inputs: missing; expected collections of raw shards"),
    "missing path": ("inputs:\n  - name: a\n", "c.yaml:2: inputs.0.path: missing; expected a file"),
    "empty inputs": ("inputs: []\n", "c.yaml:1: inputs: "),
    "equal input names": (
        "inputs:\n  - {name: a, path: x}\n  - {name: a, path: y}\n",
        "c.yaml:1: inputs: expected input names that differ from one another",
    ),
    # types and ranges
    "text for a number": (GOOD + "seed: soon\n", 'c.yaml:5: seed: expected a valid integer; got "soon"'),
    "quoted number": (GOOD + 'seed: "1"\n', 'c.yaml:5: seed: expected a valid integer; got "1"'),
    "octal": (GOOD + "seed: 012\n", 'c.yaml:5: seed: expected a valid integer; got "012"'),
    "underscores": (GOOD + "seed: 1_000\n", 'c.yaml:5: seed: expected a valid integer; got "1_000"'),
    "sexagesimal": (GOOD + "seed: 1:30\n", 'c.yaml:5: seed: expected a valid integer; got "1:30"'),
    "boolean for a number": (GOOD + "seed: true\n", "c.yaml:5: seed: expected a valid integer; got true"),
    "float for a number": (GOOD + "seed: 1.5\n", "c.yaml:5: seed: expected a valid integer"),
    "null": (GOOD + "seed: ~\n", "c.yaml:5: seed: expected a valid integer; got null"),
    "negative": (GOOD + "seed: -1\n", "c.yaml:5: seed: expected greater than or equal to 0; got -1"),
    "too small": (
        GOOD + "pack: {max_sequence_length: 1}\n",
        "c.yaml:5: pack.max_sequence_length: expected greater than or equal to 2; got 1",
    ),
    "too large": (
        GOOD + "pack: {max_sequence_length: 1000000}\n",
        "c.yaml:5: pack.max_sequence_length: expected less than or equal to 131072; got 1000000",
    ),
    "a number for text": ("inputs:\n  - {name: a, path: 7}\n", "inputs.0.path: expected a path or a list of paths; got 7"),
    "a list for a section": (GOOD + "pack: [1]\n", "c.yaml:5: pack: "),
    "a mapping for a list": ("inputs: {name: a, path: b}\n", "c.yaml:1: inputs: "),
    "a word that is not a choice": (
        GOOD + "dedup: {verify: exaggt}\n",
        "c.yaml:5: dedup.verify: expected 'exact', 'estimate' or 'none'; got \"exaggt\"",
    ),
    "no is a word": (
        GOOD + "clean: {fix_text: no}\n",
        'got "no" (write true or false)',
    ),
    "no is a word where neither is meant": (
        GOOD + "dedup: {preset: no}\n",
        "'exact' or 'none'; got \"no\"\n",
    ),
    "name with a slash": ("name: ../x\n" + GOOD[11:], "c.yaml:1: name: "),
    "name with a dot first": ("name: .x\n" + GOOD[11:], "c.yaml:1: name: "),
    # units
    "unknown unit": (
        GOOD + "read: {task_bytes: 64 MiX}\n",
        "c.yaml:5: read.task_bytes: expected bytes such as 1048576 or '64 MiB'",
    ),
    "negative bytes": (GOOD + "read: {task_bytes: -64 MiB}\n", "c.yaml:5: read.task_bytes: expected bytes"),
    "a unit where none belongs": (
        GOOD + "pack: {max_sequence_length: 2 KiB}\n",
        'c.yaml:5: pack.max_sequence_length: expected a valid integer; got "2 KiB"',
    ),
    "too many bytes": (GOOD + "hdf5: {shard_bytes: 1 GiB}\n", "c.yaml:5: hdf5.shard_bytes: expected less"),
    "a huge number of bytes": (GOOD + f"read: {{task_bytes: {'9' * 400} GiB}}\n", "c.yaml:5: read.task_bytes: "),
    "share above one": (
        GOOD + "pack: {validation_share: 2}\n",
        "c.yaml:5: pack.validation_share: expected less than or equal to 1; got 2",
    ),
    "per cent above a hundred": (GOOD + "pack: {validation_share: 170 %}\n", "pack.validation_share: expected"),
    "share in words": (
        GOOD + "pack: {validation_share: half}\n",
        "c.yaml:5: pack.validation_share: expected a share such as 0.01 or '1 %'",
    ),
    "not a number": (GOOD + "pack: {validation_share: .nan}\n", "c.yaml:5: .nan is not a finite number"),
    "infinite": (GOOD + "pack: {validation_share: -.inf}\n", "c.yaml:5: -.inf is not a finite number"),
    "overflowing": (GOOD + "pack: {validation_share: 1e400}\n", "c.yaml:5: 1e400 is not a finite number"),
    "a number of 5000 digits": (GOOD + "seed: " + "9" * 5000 + "\n", "c.yaml:5: the number 999"),
    # YAML
    "tag": (GOOD + "seed: !!python/object/apply:os.system ['true']\n", "c.yaml:5: tags (tag:yaml.org,2002:python"),
    "harmless tag": (GOOD + "seed: !!int 3\n", "c.yaml:5: tags (tag:yaml.org,2002:int) are not allowed"),
    "anchor": (GOOD + "seed: &a 3\n", "c.yaml:5: anchors (&a) are not allowed"),
    "alias": (GOOD + "seed: *a\n", "c.yaml:5: aliases (*a) are not allowed"),
    "alias bomb": (
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
        "c.yaml:1: anchors (&a) are not allowed",
    ),
    "merge key": (GOOD + "pack:\n  <<: {seed: 1}\n", "c.yaml:6: merge keys (<<) are not allowed"),
    "two documents": (GOOD + "---\nseed: 1\n", "c.yaml:5: expected one YAML document, found a second"),
    "list at the top": ("- a\n", "c.yaml:1: expected a mapping of keys to values at the top level"),
    "empty file": ("", "c.yaml:1: expected a mapping"),
    "list as a key": ("? [a]\n: 1\n", "c.yaml:1: a key must be a plain word"),
    "tab": (GOOD + "pack:\n\tseed: 1\n", "c.yaml:6: not valid YAML"),
    "unclosed": (GOOD + "pack: {seed: 1\n", "c.yaml:6: not valid YAML"),
    "too deep": (GOOD + "x: " + "[" * 5000, "c.yaml:5: more than 50 nested levels"),
    "too large a file": (GOOD + "#" + "x" * (1 << 20), "c.yaml: expected a config of at most 1,048,576 bytes"),
    "control characters in a value": (
        GOOD + 'dedup: {preset: "a\\e[31mred"}\n',
        "a\\u001b[31mred",
    ),
    "control characters in a key": (GOOD + '"z\\e[31m": 1\n', "c.yaml:5: z\\x1b[31m: unknown key"),
    "newline in a duplicate key": (GOOD + '"a\\nb": 1\n"a\\nb": 2\n', "c.yaml:6: duplicate key a\\nb"),
    "control character as itself": (GOOD + "seed: \x07\n", "c.yaml:"),
    "control characters in a tag": (GOOD + "seed: !<a%1B[31m> 3\n", "c.yaml:5: tags ("),
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), POISON.values(), ids=POISON)
def test_a_poison_config_is_one_line_and_code_2(
    prep_run: Callable[..., Outcome], config: str, message: str
) -> None:
    code, err = prep_run(config.encode())
    assert code == 2, err
    assert message in err
    assert err.count("\n") == 1, err
    assert len(err) < 1000
    assert all(c.isprintable() for c in err[:-1]), repr(err)


def test_every_mistake_has_a_line(prep_run: Callable[..., Outcome]) -> None:
    """In the order of the file, overrides before; a section says nothing of what is wrong inside."""
    config = (
        "nmae: x\ninputs:\n  - {name: a, paht: x}\npack: {max_sequence_length: 1, packer: best}\n"
        "tokenize: {eos: [1]}\n"
    )
    code, err = prep_run(config.encode(), ("--set", "seed=soon", "--set", "seed"))
    assert code == 2
    assert err.splitlines() == [
        "--set seed: expected dotted.key=value",
        '--set seed: expected a valid integer; got "soon"',
        "c.yaml:1: nmae: unknown key; did you mean 'name'?",
        "c.yaml:3: inputs.0.path: missing; expected a file, a directory or a glob, relative to this "
        "config, or a list of them; or builtin:quickstart",
        "c.yaml:3: inputs.0.paht: unknown key; did you mean 'path'?",
        "c.yaml:4: pack.max_sequence_length: expected greater than or equal to 2; got 1",
        "c.yaml:4: pack.packer: expected 'first_fit' or 'greedy'; got \"best\"",
        "c.yaml:5: tokenize.eos: expected a valid string or a valid integer; got [1]",
    ]


def test_many_mistakes_are_cut_short(prep_run: Callable[..., Outcome]) -> None:
    config = GOOD + "".join(f"key{i}: 1\n" for i in range(30))
    code, err = prep_run(config.encode())
    assert (code, len(err.splitlines())) == (2, 21)
    assert err.endswith("\nand 10 more\n")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"name: \xff\n", "c.yaml:1: not UTF-8 text (byte 6)"),
        (b"\x00", "c.yaml:1: not valid YAML"),
        (GOOD.encode("utf-16"), "c.yaml:1: not"),
    ],
)
def test_bytes_that_are_no_text(
    prep_run: Callable[..., Outcome], config: bytes, message: str
) -> None:
    code, err = prep_run(config)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("pack.max_sequence_lenght=8", "--set pack.max_sequence_lenght: unknown key; did you mean"),
        ("seed", "--set seed: expected dotted.key=value"),
        ("=1", "--set =1: expected dotted.key=value"),
        ("seed.deeper=1", "--set seed.deeper: "),
        ("inputs.7.path=x", "--set inputs.7.path: there is no item 7 of 1 item, numbered from 0"),
        ("inputs.7=x", "--set inputs.7: there is no item 7"),
        ("seed=soon", "--set seed: expected a valid integer"),
        ("seed=[1", "--set seed:1: not valid YAML"),
        ("seed=*a", "--set seed:1: aliases"),
        ("\x1b[31m", "--set \\x1b[31m: expected"),
        ("z\x1b[31m=1", "--set z\\x1b[31m: unknown key"),
        ("seed.\x1b[31m=1", "--set seed.\\x1b[31m: "),
    ],
)
def test_poison_overrides(prep_run: Callable[..., Outcome], option: str, message: str) -> None:
    code, err = prep_run(GOOD.encode(), ("--set", option))
    assert code == 2, err
    assert message in err
    assert err.count("\n") == 1
    assert all(c.isprintable() for c in err[:-1]), repr(err)


def test_a_config_that_is_not_there(prep_run: Callable[..., Outcome], tmp_path: Path) -> None:
    arguments = ["run", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "out")]
    assert run_app(functools.partial(app, args=arguments), "prep") == 2
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GOOD)
    arguments = ["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")]
    assert run_app(functools.partial(app, args=arguments), "prep") == 3
    assert [p.name for p in tmp_path.iterdir()] == ["c.yaml"]


def test_units_and_overrides_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD + "read: {task_bytes: 1.5 MiB, max_bad_share: 2 %}\n")
    overrides = ("pack.max_sequence_length=64", "inputs.0.path=/data", "hdf5.shard_bytes=8 MB")
    config = load_config(path, overrides).config
    assert config.read.task_bytes == 3 << 19
    assert config.read.max_bad_share == 0.02
    assert config.pack.max_sequence_length == 64
    assert config.inputs[0].path == "/data"
    assert config.hdf5.shard_bytes == 8_000_000


PATHS = {
    "inputs.0.path=[a, s3://bucket/b, 'hf:c', /d]": ("{here}/a", "s3://bucket/b", "hf:c", "/d"),
    "inputs=[{name: x, path: ../a}]": "{parent}/a",
    "screen.registry=[r, builtin:quickstart]": ("{here}/r", "builtin:quickstart"),
    "screen={optout: [o]}": ("{here}/o",),
    "filters={c4: {bad_words: w.txt}}": "{here}/w.txt",
    "tokenize.tokenizer=gpt2": "gpt2",
    "tokenize.tokenizer=tok": "{here}/tok",
    "decontaminate.sets=[e.jsonl]": ("{here}/e.jsonl",),
    "dedup.indexes=[i]": ("{here}/i",),
    "filters={c4: true, words: {zh: {function: ./o.py:f}}}": "{here}/o.py:f",
    "filters.words={zh: {function: ./o.py:f}}": "{here}/o.py:f",
    "filters.words.zh={function: ./o.py:f}": "{here}/o.py:f",
    "signals.words.zh.function=./o.py:f": "{here}/o.py:f",
}


@pytest.mark.parametrize(("option", "path"), PATHS.items(), ids=list(PATHS))
def test_paths_of_set_are_those_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, path: str | tuple[str, ...]
) -> None:
    config, here = tmp_path / "configs/c.yaml", tmp_path / "here"
    config.parent.mkdir()
    here.mkdir()
    config.write_text(GOOD + "filters: {c4: true}\nsignals: {c4: true}\n")
    monkeypatch.chdir(here)

    def filled(some: str | tuple[str, ...]) -> object:
        if isinstance(some, tuple):
            return tuple(map(filled, some))
        return some.format(here=here, parent=tmp_path)

    def values(section: object) -> list[object]:
        inner = section if isinstance(section, tuple) else dict(section).values()  # type: ignore[call-overload]
        deeper = [v for v in inner if isinstance(v, config_model.FrozenModel | tuple | dict)]
        return [*inner, *(found for value in deeper for found in values(value))]

    assert filled(path) in values(load_config(config, (option,)).config)
    assert load_config(config).config.inputs[0].path == "raw"


def test_every_path_of_a_config_is_marked() -> None:
    """What says that it is relative to the config is what --set takes from the working directory."""

    def walk(model: type[config_model.FrozenModel], prefix: str) -> dict[str, bool]:
        found = {}
        for name, info in model.model_fields.items():
            for inner in config_model._models_in(info.annotation):
                found |= walk(inner, f"{prefix}{name}.")
            marked = any(isinstance(m, config_model.RelativePath) for m in info.metadata)
            says = "relative to this config" in (info.description or "")
            if marked or says:
                found[prefix + name] = marked
        return found

    fields = walk(Config, "")
    assert all(fields.values()) and len(fields) == 16


def test_configs_are_frozen(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    with pytest.raises(ValueError, match="frozen"):
        load_config(path).config.seed = 2  # type: ignore[misc]


def test_every_field_is_described() -> None:
    def walk(model: type[config_model.FrozenModel], prefix: str) -> list[str]:
        missing = []
        for name, info in config_model.described_fields(model).items():
            inner = config_model._models_in(info.annotation)
            for each in inner:
                missing += walk(each, f"{prefix}{name}.")
            if not inner and not info.description:
                missing.append(prefix + name)
        return missing

    assert walk(Config, "") == []


@given(st.binary(max_size=60) | st.text(alphabet="ab:-[]{}&*!|>'\"#%@\n \t?,~0.1e", max_size=60))
@example(b"? \n")
@example("a: !\n")
@example("%YAML 9.9\n---\n")
@example("&\n")
def test_any_bytes_give_a_value_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes | str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    problem = ""
    try:
        config_model.parse(Config, yaml.load_yaml(path))
    except ConfigError as error:
        problem = str(error)
    assert problem
    assert all(line.startswith(str(path)) and line.isprintable() for line in problem.split("\n"))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=8)
        | st.floats(allow_nan=False),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(sorted(Config.model_fields)), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_any_value_gives_a_config_or_one_line(value: object) -> None:
    loaded = yaml.YamlDocument(Path("c.yaml"), {"name": "x", "inputs": value}, {})
    problem = ""
    try:
        config_model.parse(Config, loaded)
    except ConfigError as error:
        problem = str(error)
    assert all(line.isprintable() for line in problem.split("\n"))
