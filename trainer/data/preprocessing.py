"""A preprocessing file of Model Zoo (`cszoo data_preprocess run --config FILE`) as a config of
`prep run`, in its mode `pretraining`.

What Model Zoo does with such a file is done: texts are read, repaired with ftfy if asked, tokenized
and packed. Nothing is deduplicated or dropped; texts are screened, but no decision follows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.config.model import FrozenModel, parse
from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import GPT2
from trainer.config.params_file import load_params_yaml

File = Annotated[Path, Field(strict=False)]
IDLE = (
    "write_in_batch",
    "resume_from_checkpoint",
    "read_chunk_size",
    "write_chunk_size",
    "shuffle",
    "fraction_of_RAM_alloted",
    "pad_id",
)
"""Keys of `processing` that change nothing: documents are always shuffled, and the same command
always resumes."""
_TEXT_HOOK = "text_read_hook"


class InputData(FrozenModel):
    """`setup.data`."""

    source: str
    type: Literal["local"] = "local"


class DataSplit(FrozenModel):
    """An entry of `setup.data_splits`; the lengths of `context_splits` are not supported."""

    split_fraction: float = Field(ge=0, le=1)


class Setup(FrozenModel):
    """`setup`: where the data is and goes."""

    data: InputData
    mode: Literal["pretraining"]
    output_dir: File = Path("output")
    processes: int | None = Field(None, ge=0)
    data_splits_dir: File | None = None
    data_splits: dict[str, DataSplit] = Field(default_factory=dict)


class TokenizerFiles(FrozenModel):
    """`processing.tokenizer_params` of a custom tokenizer."""

    vocab_file: str | None = None
    encoder_file: str | None = None


class ReadHookSettings(FrozenModel):
    """`processing.read_hook_kwargs`."""

    text_key: str = "text"
    data_keys: dict[Literal["text_key"], str] = Field(default_factory=dict)


class Processing(FrozenModel):
    """`processing`: from text to rows."""

    custom_tokenizer: Literal["gpt2tokenizer", "neoxtokenizer"] | None = None
    huggingface_tokenizer: str | None = None
    tokenizer_params: TokenizerFiles = TokenizerFiles()
    eos_id: int | None = None
    max_seq_length: int = 2048
    short_seq_prob: float = Field(0.0, ge=0, le=0)
    seed: int = 0
    shuffle_seed: int = 0
    read_hook: str = _TEXT_HOOK
    read_hook_kwargs: ReadHookSettings = ReadHookSettings()
    use_ftfy: bool = False
    ftfy_normalizer: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = "NFC"
    wikitext_detokenize: Literal[False] = False
    skip_bad_lines: bool = Field(False, alias="UNSAFE_skip_jsonl_decoding_errors")
    write_in_batch: Any = None
    resume_from_checkpoint: Any = None
    read_chunk_size: Any = None
    write_chunk_size: Any = None
    shuffle: Any = None
    fraction_of_RAM_alloted: Any = None  # noqa: N815 - as Model Zoo spells it
    pad_id: Any = None


class Rows(FrozenModel):
    """`dataset`: how documents fill rows."""

    pack_sequences: Literal[True] = True
    use_vsl: bool = False


class PreprocessingConfig(FrozenModel):
    """A whole preprocessing file."""

    setup: Setup
    processing: Processing
    dataset: Rows = Rows()


def read_preprocessing(path: Path) -> PreprocessingConfig:
    """Raises ConfigError, a line `FILE:LINE: key: …` for each key that is unknown, for another mode
    than pretraining and for what `prep` does not do."""
    return parse(PreprocessingConfig, load_params_yaml(path))


def to_prep(config: PreprocessingConfig) -> Mapping[str, Any]:
    """The config of `prep run` that does the same. Raises ConfigError for a hook, a tokenizer or
    splits that it does not have."""
    work = config.processing
    if work.read_hook.rpartition(":")[2] != _TEXT_HOOK:
        raise ConfigError(f"processing.read_hook {work.read_hook}: only {_TEXT_HOOK} is supported")
    keys = work.read_hook_kwargs
    return {
        "name": "preprocessed",
        "seed": work.shuffle_seed or work.seed,
        "inputs": [
            {
                "name": "data",
                "path": config.setup.data.source,
                "text_key": keys.data_keys.get("text_key", keys.text_key),
            }
        ],
        "read": {"on_bad_record": "drop" if work.skip_bad_lines else "fail"},
        "clean": {
            "min_length": 0,
            "fix_text": work.use_ftfy,
            "ftfy": {"normalization": work.ftfy_normalizer},
        },
        "dedup": {"preset": "none"},
        "screen": {"policy": "builtin:allow"},
        "tokenize": {"tokenizer": _tokenizer(work), "eos": work.eos_id},
        "pack": {
            "max_sequence_length": work.max_seq_length,
            "validation_share": _validation_share(config.setup.data_splits),
            "format": "vsl" if config.dataset.use_vsl else "sample",
        },
    }


def _tokenizer(work: Processing) -> str:
    if work.custom_tokenizer == "gpt2tokenizer":
        return GPT2
    name = work.huggingface_tokenizer or work.tokenizer_params.encoder_file
    if name in (GPT2, "openai-community/gpt2"):
        return GPT2
    if name is None or not Path(name).exists():
        raise ConfigError(
            f"processing: tokenizer {name}: there is no such file or directory; nothing is "
            "downloaded, so give the path of its tokenizer.json"
        )
    return str(Path(name).absolute())


def _validation_share(splits: Mapping[str, DataSplit]) -> float:
    others = [name for name in splits if name not in ("train", "val", "valid", "validation")]
    if others:
        raise ConfigError(f"setup.data_splits.{others[0]}: expected train and val")
    return sum(split.split_fraction for name, split in splits.items() if name != "train")
