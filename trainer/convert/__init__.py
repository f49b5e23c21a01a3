"""Weights between this trainer, Hugging Face and Model Zoo: pure functions over state dicts.

`to_hf`, `from_hf`, `to_model_zoo`, `from_model_zoo` and `fold_mup` take and give dicts of `Lazy`
tensors (`held` makes them of tensors in memory); `job` reads and writes the files around them.

Limits: decoders that `trainer.config.ModelConfig` describes, in the families of `families`; no
optimizer state; BTLM and Jais are checked by their list of keys alone, since their classes are not
part of `transformers`.
"""

from trainer.convert.families import FAMILIES, PLANNED, Family, family_of
from trainer.convert.fold import fold_mup
from trainer.convert.huggingface import from_hf, to_hf
from trainer.convert.lazy import Lazy, State, held
from trainer.convert.modelzoo import from_model_zoo, to_model_zoo

__all__ = [
    "FAMILIES",
    "PLANNED",
    "Family",
    "Lazy",
    "State",
    "family_of",
    "fold_mup",
    "from_hf",
    "from_model_zoo",
    "held",
    "to_hf",
    "to_model_zoo",
]
