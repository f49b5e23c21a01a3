"""muTransfer: the best trial of a proxy, as the params file of a wider target.

Cerebras-GPT (arXiv 2304.03208) Table 14: eta_base, sigma_base and m_emb hold for every width when
both models count widths from the same base, and heads are as wide. How they scale with the width
follows from `mup_base_hidden_size` where the target is trained, so they are written as they are.
"""

from dataclasses import dataclass
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.core.strict_yaml import YamlDocument
from trainer.config import ModelConfig, Normal, Params, TruncatedNormal
from trainer.report.facts import peak
from trainer.sweep import results
from trainer.sweep.config import EMBEDDINGS_SCALE, INITIALIZER_STD, LEARNING_RATE
from trainer.sweep.plan import SweepPlan
from trainer.sweep.results import TrialResult
from trainer.sweep.variant import as_yaml, change_sections, read_base

_KERNEL = "decoder_kernel"


@dataclass(frozen=True)
class Transfer:
    """What is carried over. `left`: parameters of the sweep that Table 14 does not scale; batches
    in tokens, of the first step."""

    learning_rate: float
    std: float
    embeddings_scale: float
    m_width: float
    proxy_batch: int
    target_batch: int
    left: tuple[str, ...]

    def lines(self) -> list[str]:
        """What was done, and what to mind."""
        told = [
            f"eta_base {self.learning_rate:g}, sigma_base {self.std:g}, m_emb "
            f"{self.embeddings_scale:g}; m_width {self.m_width:g}: matrices inside "
            f"blocks use learning rate eta / {self.m_width:g} and initial deviation sigma / "
            f"sqrt({self.m_width:g})",
            "The learning rate transfers while the batch is at least the critical batch; below it, "
            "scale the learning rate linearly with the batch (Cerebras-GPT). The "
            f"critical batch is not known here; the batch of the proxy has {self.proxy_batch:,} "
            "tokens, that of the "
            f"target {self.target_batch:,}.",
        ]
        if self.left:
            told.append(f"Not part of muTransfer, so not carried over: {', '.join(self.left)}")
        return told


def transfer(plan: SweepPlan, found: dict[int, TrialResult], target: Path, out: Path) -> Transfer:
    """Publish `out`: the params of `target` with eta_base, sigma_base and m_emb of the best trial.

    Raises ConfigError when no trial has a loss, when `out` is there already, or when muP does not
    carry over from this proxy to this target, naming the key.
    """
    if out.exists():
        raise ConfigError(f"--write {out}: this file already exists; choose another name")
    best = results.best(found)
    if best is None:
        raise ConfigError("--transfer: no trial has a loss yet")
    proxy, base = plan.variants[best.trial].params, read_base(target)
    check(proxy.model, base.params, base.path)
    values = {
        LEARNING_RATE: peak(proxy.optimizer),
        INITIALIZER_STD: _std(proxy.model),
        EMBEDDINGS_SCALE: proxy.model.embeddings_scale,
    }
    sections, params = change_sections(base, values, YamlDocument(base.path, {}, {}))
    done = Transfer(
        values[LEARNING_RATE],
        values[INITIALIZER_STD],
        values[EMBEDDINGS_SCALE],
        params.model.m_width,
        _batch(proxy),
        _batch(params),
        tuple(name for name in plan.config.parameters if name not in values),
    )
    head = f"{base.path.name} with eta, sigma and m_emb of trial {best.trial} of {plan.path.name}"
    head = "\n".join([f"{head} (loss {best.loss:.4f}).", *done.lines()])
    storage.publish(out, as_yaml(sections, head))
    return done


def check(proxy: ModelConfig, target: Params, path: Path) -> None:
    """Raise ConfigError naming the key in which `target`, of `path`, does not fit the proxy."""
    model = target.model
    for which, each in (("the proxy", proxy), (str(path), model)):
        if each.mup_base_hidden_size is None:
            raise ConfigError(
                f"--transfer: {which} has no model.mup_base_hidden_size: without muP its "
                "hyperparameters hold for its own width only"
            )
    pairs = {
        "model.mup_base_hidden_size": (proxy.mup_base_hidden_size, model.mup_base_hidden_size),
        "hidden_size / num_heads": (proxy.head_size, model.head_size),
        "model.mup_base_filter_size": (_base_filter(proxy), _base_filter(model)),
        "model.scale_qk_dot_by_d": (proxy.scale_qk_dot_by_d, model.scale_qk_dot_by_d),
        "model.output_logits_alpha": (
            proxy.output_logits_scale * proxy.m_width,
            model.output_logits_scale * model.m_width,
        ),
    }
    for key, (of_proxy, of_target) in pairs.items():
        if of_proxy != of_target:
            raise ConfigError(
                f"--transfer {path}: {key} is {of_target:g}, that of the proxy {of_proxy:g}; "
                "muTransfer holds between equal ones only"
            )
    factor = target.optimizer.adjust_learning_rate.get(_KERNEL, 1 / model.m_width)
    if abs(factor * model.m_width - 1) > 1e-9:
        raise ConfigError(
            f"--transfer {path}: optimizer.adjust_learning_rate.{_KERNEL} is {factor:g}; expected "
            f"1 / m_width = {1 / model.m_width:g}, or leave it out"
        )


def _std(model: ModelConfig) -> float:
    """Sigma of the initializer: with muP there is one."""
    rule = model.initializer
    if not isinstance(rule, TruncatedNormal | Normal):
        raise ConfigError(f"--transfer: initializer {rule.name} of the proxy has no sigma")
    return rule.std


def _base_filter(model: ModelConfig) -> float:
    given = model.mup_base_filter_size
    return model.filter_size / model.m_width if given is None else given


def _batch(params: Params) -> int:
    return params.train_input.schedule[0][1] * params.model.max_position_embeddings
