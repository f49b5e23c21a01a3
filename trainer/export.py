"""`runconfig.export`: a finished run leaves its last checkpoint in the form others read."""

from pathlib import Path

from pipeline.core.errors import ConfigError
from trainer import checkpoint
from trainer.config import Params
from trainer.convert.families import family_of
from trainer.convert.job import CheckpointConvertOptions, convert
from trainer.prepare import TOKENIZER_FILES
from trainer.progress import Say


def check(params: Params) -> None:
    """Refuse, before step 1, to train what cannot be exported. Raises ConfigError."""
    if params.runconfig.export is None:
        return
    try:
        family_of(params.model)
    except ConfigError as error:
        raise ConfigError(f"runconfig.export: {params.runconfig.export}: {error}") from error


def export(params: Params, model_dir: Path, say: Say) -> None:
    """Write MODEL_DIR/export/step_XXXXXXX from the last checkpoint, unless it is there, with the
    tokenizer of MODEL_DIR."""
    newest = checkpoint.find_newest(model_dir)
    if params.runconfig.export is None or newest is None:
        return
    tokenizer = model_dir / TOKENIZER_FILES[0]
    convert(
        CheckpointConvertOptions(
            checkpoint=newest,
            source="wafermill",
            target=params.runconfig.export,
            out=model_dir / "export" / newest.name,
            tokenizer=str(tokenizer) if tokenizer.is_file() else None,
        ),
        say,
    )
