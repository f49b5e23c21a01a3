"""Writes docs/train_configuration.md from the config models and the tables of Model Zoo's keys.

python docs/make_train_configuration.py          # write the file
python docs/make_train_configuration.py --check  # exit 1 when it is out of date
"""

import importlib.util
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from trainer.config import Params, load_params
from trainer.config.legacy_keys import COMMAND_LINE, IDLE, ONLY, RENAMED
from trainer.config.model_parameters import parameter_count
from trainer.config.trainer_form import CALLBACKS, MODELS, MOVED
from wafer_backend.optim.registry import OPTIMIZERS, SCHEDULERS

TARGET = Path(__file__).with_name("train_configuration.md")
CONFIGS = Path(__file__).parents[1] / "configs" / "train"

UNITS = {
    "weight": "times", "from_step": "step", "batch_size_schedule": "sequences",
    "batch_size": "sequences", "micro_batch_size": "sequences", "shuffle_seed": "",
    "start_token": "", "stop_sequences": "", "max_tokens": "tokens",
    "vocab_size": "entries", "max_position_embeddings": "tokens", "hidden_size": "units",
    "num_hidden_layers": "layers", "num_heads": "heads", "filter_size": "units",
    "rotary_dim": "units", "rope_theta": "", "num_kv_groups": "heads",
    "pos_scaling_factor": "", "original_max_position_embeddings": "tokens", "low_freq_factor": "",
    "high_freq_factor": "", "beta_fast": "turns", "beta_slow": "turns",
    "attention_inner_dim": "units", "attention_logits_alpha": "",
    "attention_logit_softcapping": "", "final_logit_softcapping": "", "attention_qk_norm_eps": "",
    "num_experts": "experts", "top_k": "experts", "num_shared_experts": "experts",
    "sink_token_id": "token id", "num_sink_tokens": "tokens",
    "mask_token_id": "token id", "masked_lm_prob": "share",
    "noise_density": "share", "mean_noise_span_length": "tokens", "extra_ids": "token ids",
    "decoder_num_hidden_layers": "layers", "tgt_max_position_embeddings": "tokens",
    "relative_attention_num_buckets": "buckets", "relative_attention_max_distance": "tokens",
    "load_balancing_loss_coef": "", "null_expert_bias": "",
    "attention_sliding_window_length": "tokens", "attention_sink_tokens": "tokens",
    "dropout_rate": "probability", "embedding_dropout_rate": "probability",
    "attention_dropout_rate": "probability", "residual_dropout_rate": "probability",
    "layer_norm_epsilon": "", "mup_base_hidden_size": "units", "mup_base_filter_size": "units",
    "embeddings_scale": "", "output_logits_alpha": "", "output_logits_scale": "",
    "loss_weight": "", "mean": "", "std": "", "a": "", "b": "",
    "betas": "", "eps": "", "weight_decay": "", "max_gradient_norm": "2-norm",
    "optimizer.learning_rate": "per step", "learning_rate": "", "initial_learning_rate": "",
    "end_learning_rate": "", "total_iters": "steps", "adjust_learning_rate": "",
    "scale": "", "gain": "", "val": "", "power": "", "decay_rate": "", "step_exponent": "",
    "warmup_steps": "steps", "learning_rates": "", "milestones": "steps", "gamma": "",
    "step_size": "steps", "T_max": "steps", "eta_min": "", "T_0": "steps", "T_mult": "times",
    "base_lr": "", "max_lr": "", "step_size_up": "steps", "step_size_down": "steps",
    "total_steps": "steps", "pct_start": "share", "final_div_factor": "times",
    "loss_scaling_factor": "",
    "etas": "times",

    "t0": "steps",
    "sparsity": "share", "drop_fraction": "share", "value": "share", "values": "shares",
    "init": "share", "slope": "share", "final": "share", "minimum": "share", "beta": "times",
    "half_period": "steps", "freq": "steps", "start": "step", "stop": "step", "steps": "steps",
    "balance_in_groups": "groups", "balance_out_groups": "groups",
    "max_steps": "steps", "num_steps": "steps", "num_epochs": "epochs", "max_epochs": "epochs",
    "seed": "", "num_csx": "systems", "checkpoint_steps": "steps",
    "max_checkpoints": "checkpoints", "eval_frequency": "steps", "eval_steps": "batches",
    "log_steps": "steps", "start_step": "step", "end_step": "step", "threads": "threads",
    "wafer_memory": "bytes", "min_leaves": "leaves", "max_wgt_servers": "servers",
    "processes": "", "liveness": "seconds", "max_num_restarts": "", "min_num_csx": "",
    "every": "steps", "growth_limit": "times", "key_bias_limit": "times", "underflow_limit": "",
    "spike_window": "steps", "spike_sigma": "standard deviations",
}  # fmt: skip
"""Unit of every numeric field, by dotted key or by its last part; "" for a plain number."""

HEAD = """\
# The config of a training run

Every key of `params.yaml`. This file is generated from the config models; after changing one, run
`python docs/make_train_configuration.py` (`tests/trainer/config/test_page.py` fails while it is out
of date).

`train --params FILE` takes a file or the name of a shipped one, such as `tiny` or
`cerebras_gpt/111m`. Key names are those of the Cerebras Model Zoo, R2.2; keys marked "ours" are
not. An unknown key is an error that names file and line and suggests a key; so is a value that is
not supported. Keys in an old spelling, keys without effect, and missing keys whose default here is
not that of Model Zoo are reported once at the start of a run, and are in `Params.notes`.

The file is strict YAML, as described in [configuration.md](configuration.md), except for three
things that the files of Model Zoo have: `True` and `False` are booleans, anchors and aliases are
expanded, up to 100,000 values, and a key may be given twice with the same value. Directories are
relative to the file. Options of the command override the file; a length (`--num_steps`,
`--max_steps`, `--num_epochs`) replaces all lengths in it. If several lengths are set in the file,
the smallest applies.
"""

SPELLINGS = """\
## Spellings of Model Zoo

Three are read, and give the same run: R1.8, R2.0 to R2.2, and the `trainer:` form of R2.3 and
later. Errors and notes use the spelling of the file.

### R1.8

| key | here |
| --- | --- |
{renamed}
| `optimizer.beta1`, `optimizer.beta2` | `optimizer.betas` |
| `sparsity.type`, `sparsity.schedule` (to R2.1) | `algorithm`, `update` |
| `sparsity.sparsity_schedule` (to R2.1) | `sparsity`, a list, and `update.steps` |
| `optimizer.learning_rate[].steps`, `decay_steps` | `total_iters` |
| `optimizer.learning_rate[].values`, `boundaries` | `learning_rates`, `milestones` |
| `model.use_bfloat16` | `model.fp16_type` |
| `model.use_rms_norm`, `model.use_biasless_norm` (R1.9) | `model.norm_type` |
| `model.initializer_range` | `std` of the initializers that are not given |
| `runconfig.is_pretrained_checkpoint: true` | `runconfig.load_checkpoint_states: model` |
| `train_input.max_sequence_length`, `vocab_size` | must equal those of the model |

R1.8 without `runconfig.use_cs_grad_accum` gave the batch of one system as `batch_size`; here it is
the global one, and a note says so. `model.use_untied_layer_norm` makes a parallel block (GPT-NeoX,
Falcon), which was a model of its own, and so do the keys of GPT-J: `residual_dropout_rate` without
`dropout_rate`, with rotary positions, a bias in the read-out and none in Q, K and V.

### Values of Model Zoo

- `fp16_type: cbfloat16` is computed in bfloat16, and a note says so; results differ from those of a
  CS-2. `fp16_type: cbfloat16_exact` [emulates its values](cbfloat16.md) and, as in Model Zoo, needs
  `loss_scaling_factor: dynamic`, which elsewhere has an effect in float16 only.
- An initializer may be just a name, and then has the defaults of Model Zoo; without `a` and `b` a
  truncated normal distribution is cut at two deviations. Keys of other initializers have no effect.
  Which matrix has which initializer follows the paper (Cerebras-GPT, 2.3).
- `model.name: t5` has Model Zoo's defaults of T5; keys such as `d_model` and `src_vocab_size`
  become those below, `extra_ids` becomes `data_transforms: corrupt_spans`, and keys of its files of
  text have no effect.
- `model.name: bert` has Model Zoo's defaults of BERT, without its next-sentence task. What only
  this task and CSV files need has no effect; `masked_lm_prob` becomes `data_transforms`.
- Names of optimizers and schedulers may have any case. A scheduler without `total_iters` has no
  end, so none can follow it. The last one continues by its formula.

### The `trainer:` form

| key | here |
| --- | --- |
{moved}
{callbacks}
| `trainer.init.model` | `model`; `name` is one of {models} |
| `trainer.init.optimizer.NAME` | `optimizer`, with `optimizer_type: NAME`, in any case |
| `trainer.init.sparsity` | `sparsity` |
| `trainer.init.schedulers` | `optimizer.learning_rate`; see below |
| `trainer.fit.train_dataloader` | `train_input` |
| `trainer.fit.ckpt_path` | `runconfig.checkpoint_path` |
| `trainer.fit.val_dataloader` | `eval_input`; without it that of `validate` |

Schedulers are those of `optimizer.learning_rate` with LR behind their names (not behind
CosineAnnealingWarmRestarts), also inside SequentialLR and ScalePerParamLR. `eval_frequency` may be
a share of the steps there, such as 0.5. With muP, `output_layer_initializer` is the proxy's there,
before it is scaled by width and depth; it and `initializer` are normal or truncated_normal then.

### Without effect

These keys are accepted, and one note lists them, as are the callbacks and loggers that are not in
the table above:

{idle}

### With one value

Any other value is an error.

{only}

### On the command line

Of `runconfig`:

{options}
"""

MUP = """\
## muP

With `model.mup_base_hidden_size`, m_width is hidden_size over it, and what Table 14 of
arXiv 2304.03208 has follows: `scale_qk_dot_by_d: true`, `output_logits_scale` of
output_logits_alpha / m_width, initial deviations of matrices in blocks over the root of m_width,
learning rates of those over m_width. `initializer` is the proxy's. Keys that are given override
these. In R2.0 to R2.2 files have no base width but the results: `output_logits_scale`,
`adjust_learning_rate: {decoder_kernel: ...}` and scaled initializers; they are used as given.
"""


def document() -> str:
    """The whole of docs/train_configuration.md."""
    tables = _make_configuration()
    tables.UNITS = UNITS | dict.fromkeys(plain_numbers(), "")
    parts = [HEAD, *shipped(), SPELLINGS.format(**spellings()), MUP, "## Keys\n"]
    return "\n".join([*parts, *tables.sections(Params)])


def plain_numbers() -> Iterator[str]:
    """Settings of optimizers and schedulers for which UNITS has no unit, by dotted key."""
    sections = (("optimizer", OPTIMIZERS), ("optimizer.learning_rate", SCHEDULERS))
    for section, members in sections:
        for member in members.values():
            yield from (f"{section}.{key}" for key in member.settings if key not in UNITS)


def shipped() -> Iterator[str]:
    """A table of all configs that come with the toolkit."""
    yield "## Shipped\n\n| name | parameters | MSL | batch | steps |"
    yield "| --- | --: | --: | --: | --: |"
    rows = []
    for path in sorted(CONFIGS.rglob("*.yaml")):
        params = load_params(path)
        sizes = " → ".join(f"{size:,}" for _, size in params.train_input.schedule)
        cells = (f"`{path.relative_to(CONFIGS).with_suffix('').as_posix()}`",
                 f"{parameter_count(params.model):,}", f"{params.model.max_position_embeddings:,}",
                 sizes, f"{params.runconfig.max_steps:,}")  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    yield "\n".join(rows) + "\n"


def spellings() -> dict[str, str]:
    """Rows and lists of the section on spellings."""
    renamed = [
        (f"{s}.{old}", f"{s}.{new}") for s, keys in RENAMED.items() for old, new in keys.items()
    ]
    moved = [(f"{path}.{k}", to) for path, keys in MOVED.items() for k, to in keys.items() if to]
    calls = [
        (f"trainer.init.callbacks[].{name}.{key}", "`, `".join(to))
        for name, keys in CALLBACKS.items()
        for key, to in keys.items()
    ]
    only = [
        (section, [f"{key}: {json.dumps(values[0])}" for key, values in keys.items()
                   if key not in COMMAND_LINE])
        for section, keys in ONLY.items()
    ]  # fmt: skip
    options = [f"- `{key}`: {option}" for key, option in COMMAND_LINE.items()]
    return {
        "models": ", ".join(MODELS), "renamed": _rows(renamed), "moved": _rows(moved),
        "callbacks": _rows(calls),
        "idle": _items(IDLE.items()), "only": _items(only), "options": "\n".join(options),
    }  # fmt: skip


def _rows(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"| `{old}` | `{new}` |" for old, new in pairs)


def _items(sections: Iterable[tuple[str, Iterable[str]]]) -> str:
    """One item of a list for every section, lines of the usual length."""
    texts = [f"`{name}`: {', '.join(f'`{key}`' for key in keys)}." for name, keys in sections]
    return "\n".join(
        textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ",
                      break_long_words=False, break_on_hyphens=False)
        for text in texts
    )  # fmt: skip


def _make_configuration() -> ModuleType:
    """The script beside this one, which makes the tables."""
    path = Path(__file__).with_name("make_configuration.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(_make_configuration().write_or_compare(TARGET, document()))
