"""Finds the files that come with the toolkit: configs and the GPT-2 vocabulary."""

from pathlib import Path

from pipeline.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
_CONFIG_ROOTS = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


def find_config(kind: str, name_or_path: str | Path) -> Path:
    """The file of a config given as a path, or as the name of a shipped one (`tiny`,
    `cerebras_gpt/13b`).

    `kind` is `prep`, `train` or `sweep`. Raises ConfigError listing the shipped names.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = list_shipped_configs(kind)
    if path.as_posix() in shipped:
        return shipped[path.as_posix()]
    raise ConfigError(
        f"{path}: no such config; give a file or the name of a shipped config: {', '.join(shipped)}"
    )


def list_shipped_configs(kind: str) -> dict[str, Path]:
    """name -> file of every shipped config of `kind`, by name."""
    roots = [root / kind for root in _CONFIG_ROOTS if (root / kind).is_dir()]
    files = {
        file.relative_to(root).with_suffix("").as_posix(): file
        for root in roots
        for file in root.rglob("*.yaml")
    }
    return dict(sorted(files.items()))


def gpt2_vocabulary() -> Path:
    """Directory with the GPT-2 `encoder.json` and `vocab.bpe`."""
    return _PACKAGE / "tokenizers" / "gpt2"
