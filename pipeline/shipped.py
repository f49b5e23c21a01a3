"""Files that come with the toolkit: configs, the GPT-2 vocabulary."""

from pathlib import Path

from pipeline.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent
_CONFIG_ROOTS = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


def find_config(kind: str, name_or_path: str | Path) -> Path:
    """The file of a config given as a path, or as the bare name of a shipped one.

    `kind` is `prep` or `train`. Raises ConfigError listing the shipped names.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    roots = [root / kind for root in _CONFIG_ROOTS if (root / kind).is_dir()]
    if path.suffix == "" and len(path.parts) == 1:
        for root in roots:
            if (root / f"{path}.yaml").is_file():
                return root / f"{path}.yaml"
    names = sorted({p.stem for root in roots for p in root.glob("*.yaml")})
    raise ConfigError(
        f"{path}: no such config; give a file or one of the shipped: {', '.join(names)}"
    )


def gpt2_vocabulary() -> Path:
    """Directory with the GPT-2 `encoder.json` and `vocab.bpe`."""
    return _PACKAGE / "tokenizers" / "gpt2"
