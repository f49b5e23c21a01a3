"""Weights between this trainer, Hugging Face and Model Zoo: pure functions over state dicts.

`to_hf`, `from_hf`, `to_model_zoo`, `from_model_zoo` and `fold_mup` take and give dicts of
`LazyTensor` (`wrap_tensors` makes them of tensors in memory); `conversion` reads and writes the
files around them.

Limits: decoders that `trainer.config.ModelConfig` describes, in the families of `families`; no
optimizer state; BTLM and Jais are checked by their list of keys alone, since their classes are not
part of `transformers`.
"""

from trainer.convert.families import FAMILIES, family_of
from trainer.convert.family import ModelFamily
from trainer.convert.lazy_tensors import LazyTensor, State, wrap_tensors
from trainer.convert.weights import fold_mup, from_hf, from_model_zoo, to_hf, to_model_zoo

__all__ = [
    "FAMILIES",
    "LazyTensor",
    "ModelFamily",
    "State",
    "family_of",
    "fold_mup",
    "from_hf",
    "from_model_zoo",
    "to_hf",
    "to_model_zoo",
    "wrap_tensors",
]
