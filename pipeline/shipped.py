"""Files that come with the toolkit: configs, the GPT-2 vocabulary."""

from pathlib import Path

from pipeline.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent
_CONFIG_ROOTS = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


def find_config(kind: str, name_or_path: str | Path) -> Path:
    """The file of a config given as a path, or as the name of a shipped one (`tiny`,
    `cerebras_gpt/13b`).

    `kind` is `prep`, `train` or `sweep`. Raises ConfigError listing the shipped names.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    roots = [root / kind for root in _CONFIG_ROOTS if (root / kind).is_dir()]
    shipped = {
        file.relative_to(root).with_suffix("").as_posix(): file
        for root in roots
        for file in root.rglob("*.yaml")
    }
    if path.as_posix() in shipped:
        return shipped[path.as_posix()]
    names = sorted(shipped)
    raise ConfigError(
        f"{path}: no such config; give a file or one of the shipped: {', '.join(names)}"
    )


def gpt2_vocabulary() -> Path:
    """Directory with the GPT-2 `encoder.json` and `vocab.bpe`."""
    return _PACKAGE / "tokenizers" / "gpt2"
