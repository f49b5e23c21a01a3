"""`model_dir/report.html` and the model card: read, rendered, published.

The card is Markdown with the front matter of Hugging Face. Nothing is claimed that was not read:
what is not known says `unknown`.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.core.words import format_percent, pluralise
from trainer.config import ModelConfig, OptimizerConfig
from trainer.config.initializers import Normal, TruncatedNormal
from trainer.model.optimizer import find_peak_rate
from trainer.report.data import UNKNOWN, PrepRun, ReportedDataSet, find_data_sets, locate_data_sets
from trainer.report.facts import RunFacts, read_run_facts
from trainer.report.page import format_number, render_training_report
from trainer.runs.console import LATEST

_MOST_SOURCES = 40
_MARKS = re.compile(r"([\\`*_\[\]|#~])")
_COMMAND = "Command: "


def render_card(facts: RunFacts, data: Sequence[ReportedDataSet]) -> bytes:
    """The card in UTF-8; a pure function of what was read and of the log of the last start."""
    mup = ["mup"] if facts.model.mup_base_hidden_size is not None else []
    pipeline, kind, _ = _task_of(facts.model)
    fields = {
        "license": UNKNOWN,  # of the weights, which no file records
        "pipeline_tag": pipeline,
        "tags": ["wafermill", kind, *mup],
    }
    front = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    parts = [
        f"---\n{front}---\n\n# {to_markdown(facts.name)}",
        "Written by `train card` from the files of the run. Nothing here was added by hand; "
        f"`{UNKNOWN}` means that no file records it.",
        _section("Model", _model(facts)),
        _section("Data", _data(facts, data)),
        _section("Training", _training(facts)),
        _section("Evaluation", _evaluation(facts)),
        _section("Limits", _limits(facts, data)),
        _section("How to reproduce", _reproduce(facts, data)),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def to_markdown(text: str) -> str:
    """Text from data for Markdown: characters that do not show spelled out, marks escaped.

    >>> print(to_markdown("a|b <i>\\x1b"))
    a\\|b &lt;i&gt;\\\\x1b
    """
    spelled = "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c)[0] in "CZ" and c != " "
        else c
        for c in text
    )
    return html.escape(_MARKS.sub(r"\\\1", spelled), quote=False)


def _section(title: str, lines: Iterable[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(' --- ' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"


def _task_of(model: ModelConfig) -> tuple[str, str, str]:
    """Pipeline and kind of model in the words of the Hugging Face Hub; what it is, a sentence."""
    if model.decoder_num_hidden_layers is not None:
        sentence = "An encoder and a decoder: a transformer that tells spans cut out of a text."
        return "text2text-generation", "seq2seq-lm", sentence
    if model.bidirectional:
        sentence = "An encoder: a transformer that guesses hidden tokens of a text."
        return "fill-mask", "masked-lm", sentence
    sentence = "A decoder-only transformer that predicts the next token."
    return "text-generation", "causal-lm", sentence


def _model(facts: RunFacts) -> Iterator[str]:
    m = facts.model
    parametrization = "standard"
    if m.mup_base_hidden_size is not None:
        parametrization = (
            f"muP, base width {m.mup_base_hidden_size} (m_width {m.m_width:g}), "
            f"m_emb {m.embeddings_scale:g}"
        )
    kv = "" if m.num_kv_heads == m.num_heads else f", {m.num_kv_heads} for keys and values"
    behind, told = "", ""
    if m.decoder_num_hidden_layers is not None:
        behind = f", {m.decoder_num_hidden_layers} of the decoder"
        told = f", {m.tgt_max_position_embeddings:,} of the decoder"
    rows = [
        ("parameters", f"{facts.parameters:,}"),
        ("width", f"{m.hidden_size:,}"),
        ("blocks", f"{m.num_hidden_layers}{', parallel' if m.parallel_block else ''}{behind}"),
        ("heads", f"{m.num_heads} of width {m.head_size}{kv}"),
        ("feed-forward", f"{m.filter_size:,}, {m.nonlinearity}"),
        *_less_common(m),
        ("norm", m.norm_type),
        ("positions", m.position_embedding_type),
        ("context", f"{pluralise(m.max_position_embeddings, 'token')}{told}"),
        ("vocabulary", f"{m.vocab_size:,}"),
        ("read-out", "tied to the embedding" if m.share_embedding_weights else "own matrix"),
        ("parametrization", parametrization),
    ]
    yield _task_of(m)[2]
    yield ""
    yield from _table(("", ""), rows)


def _less_common(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Rows that most models have not."""
    if (moe := model.moe) is not None:
        shared = f", {moe.num_shared_experts} for all" if moe.num_shared_experts else ""
        yield "experts", f"{moe.num_experts}, {moe.top_k} for each token{shared}"
    if (window := model.attention_sliding_window_length) is not None:
        every = ", every other block" if model.sliding_window_every_other_decoder_layer else ""
        yield "attention window", f"{pluralise(window, 'token')}{every}"


def _data(facts: RunFacts, data: Sequence[ReportedDataSet]) -> Iterator[str]:
    yield (
        f"Training read {pluralise(facts.samples, 'sequence')}, {pluralise(facts.tokens, 'token')} "
        f"({format_number(facts.tokens / facts.parameters, 3)} per parameter)."
    )
    for each in data:
        yield ""
        begin = f", from step {each.from_step:,} on" if each.from_step > 1 else ""
        rows = f", {pluralise(each.rows, 'row')}" if each.rows else ""
        yield f"Data set `{each.dataset_hash}`{rows}{begin}."
        if each.found is not None and each.found.takedowns:
            names = ", ".join(map(to_markdown, each.found.takedowns))
            yield f"Documents in it were masked after takedowns: {names}."
        if each.prepared is None:
            yield f"Sources: {UNKNOWN}. Licences: {UNKNOWN}."
        else:
            yield from _prepared(each, each.prepared)


def _prepared(each: ReportedDataSet, run: PrepRun) -> Iterator[str]:
    assert each.found is not None, "what is prepared was found"
    yield (
        f"Prepared by `prep run` as {to_markdown(run.config)}, manifest `{run.manifest_hash}`; "
        f"each row was read {format_number(each.found.epochs)} times on average."
    )
    yield ""
    sources, rows = [source for source in run.sources if source.tokens], []
    for s in sources[:_MOST_SOURCES]:
        named = [f"{to_markdown(n[:60])} {format_percent(t, s.tokens)}" for n, t in s.licences[:4]]
        named += [f"{len(s.licences) - 4} more"] if len(s.licences) > 4 else []
        licences = ", ".join(named) or UNKNOWN
        rows.append((to_markdown(s.name), f"{s.documents:,}", f"{s.tokens:,}", licences))
    yield from _table(
        ("source", "documents", "tokens", "licences, by tokens"),
        rows,
    )
    if len(sources) > _MOST_SOURCES:
        yield ""
        yield f"Not shown: {pluralise(len(sources) - _MOST_SOURCES, 'smaller source')}."
    yield ""
    yield (
        "Licences are those that the documents declare; what they permit was not checked. Before "
        "packing, the run removed "
        f"{pluralise(sum(s.dropped for s in run.sources), 'document')} by filters, "
        f"{sum(s.duplicates for s in run.sources):,} as duplicates and "
        f"{sum(s.quarantined for s in run.sources):,} into quarantine."
    )
    if run.decisions:
        yield ""
        yield from _table(
            ("decision", "rule", "documents"),
            [(to_markdown(what), to_markdown(rule), f"{n:,}") for what, rule, n in run.decisions],
        )


def _training(facts: RunFacts) -> Iterator[str]:
    o = facts.optimizer
    sizes = " → ".join(
        pluralise(size, "sequence") + (f" (from step {step:,})" if step > 1 else "")
        for step, size in facts.schedule
    )
    rule = facts.model.initializer
    initial = rule.name.replace("_", " ")
    if isinstance(rule, TruncatedNormal | Normal):
        initial += f", sigma {rule.std:g}"
    else:
        initial = ", ".join([initial, *(f"{key} {x}" for key, x in rule if key != "name")])
    clip = "none" if o.max_gradient_norm is None else f"{o.max_gradient_norm:g}"
    rates = o.learning_rate
    decay = "constant" if isinstance(rates, float) else _schedule(facts)
    yield from _table(
        ("", ""),
        [
            ("steps", f"{facts.step:,}"),
            ("batch", sizes),
            (
                "training FLOPs",
                f"{facts.flops:.3g} (Cerebras-GPT, Table 13"
                f"{', of dense weights' if facts.sparse else ''})",
            ),
            ("precision", facts.model.precision),
            ("optimizer", _optimizer(o)),
            *_sparsity(facts),
            ("gradient norm limit", clip),
            ("peak learning rate", f"{find_peak_rate(rates):g}"),
            ("learning rate", decay),
            (
                "initial weights",
                f"{initial}, seed {facts.record.get('weights_seed', UNKNOWN)}",
            ),
            (
                "order of the data",
                f"{facts.record.get('order', 'keyed')}, seed {facts.record.get('seed', UNKNOWN)}",
            ),
        ],
    )


def _optimizer(config: OptimizerConfig) -> str:
    """Its name and own keys: `AdamW, betas 0.9 and 0.95, eps 1e-08, weight decay 0.1`."""
    own = config.model_dump(exclude=set(OptimizerConfig.model_fields))
    words = [f"{key.replace('_', ' ')} {_value(value)}" for key, value in own.items()]
    return ", ".join([config.optimizer_type, *words])


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return " and ".join(map(_value, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}"


def _sparsity(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """A row for every group of pruned weights; shares that follow a schedule are in run.json."""
    for group in facts.sparse:
        level = group["sparsity"]
        if isinstance(level, dict):
            level = level.get("value")
        share = "a scheduled share" if level is None else f"{level:.1%}"
        where = ", ".join(f"`{glob}`" for glob in group["param_filter"])
        yield "sparsity", f"{group['algorithm']}, {share} of {where}"


def _schedule(facts: RunFacts) -> str:
    parts = []
    for each in facts.record["optimizer"]["learning_rate"]:
        first, last = each.get("initial_learning_rate"), each.get("end_learning_rate")
        if first is None:
            first = each.get("learning_rate")
        span = "" if first is None else f" {first:g}" if last is None else f" {first:g} to {last:g}"
        length = f" in {pluralise(each['total_iters'], 'step')}" if "total_iters" in each else ""
        parts.append(f"{each['scheduler']}{span}{length}")
    return ", then ".join(parts)


def _evaluation(facts: RunFacts) -> Iterator[str]:
    losses = facts.curves.validation.get("loss")
    if not losses:
        yield "Not evaluated: eval.jsonl has no entry."
        return
    step, loss = losses[-1]
    yield (
        f"Validation loss after step {step:,.0f}: **{loss:.4f}** nats per token of its own "
        "vocabulary, on the validation split of its own data. Losses on other data or with "
        "another vocabulary cannot be compared with it."
    )
    bits = facts.curves.validation.get("bits_per_byte")
    if bits:
        yield f"That is {bits[-1][1]:.4f} bits per byte of text."
    if facts.curves.per_source:
        yield ""
        last = {name: points[-1][1] for name, points in facts.curves.per_source.items()}
        ordered = sorted(last.items(), key=lambda item: item[1])
        yield from _table(
            ("source", "validation loss"),
            [(to_markdown(name), f"{x:.4f}") for name, x in ordered],
        )


def _limits(facts: RunFacts, data: Sequence[ReportedDataSet]) -> Iterator[str]:
    m = facts.model
    task = "fills in text" if m.bidirectional else "continues text"
    yield f"- It {task}. It was not tuned to follow instructions or to refuse."
    yield (
        f"- It was trained on sequences of {m.max_position_embeddings:,} tokens; its quality "
        "on longer ones was not measured."
    )
    ratio = facts.tokens / facts.parameters
    if ratio < 20:
        yield (
            f"- It has read {format_number(ratio, 3)} tokens per parameter; about 20 are "
            "compute-optimal (Cerebras-GPT)."
        )
    yield (
        "- This card reports losses only. Tasks, bias, toxicity, memorisation and safety: "
        f"{UNKNOWN}, until somebody adds them."
    )
    if any(each.prepared is None for each in data):
        yield f"- Sources and licences of some of the data: {UNKNOWN}."


def _reproduce(facts: RunFacts, data: Sequence[ReportedDataSet]) -> Iterator[str]:
    yield (
        "The same data set, settings, seeds and number of threads give the same bits on the same "
        "kind of machine, with any number of systems. All settings are in run.json of the run."
    )
    yield ""
    yield "```"
    for each in data:
        if each.prepared is not None:
            yield f"prep run {_one_line(each.prepared.config)}"
    yield _command(facts) or "train --params PARAMS --data RUN --model_dir OUT"
    yield "```"
    yield ""
    versions = ", ".join(f"{name} {version}" for name, version in facts.software)
    yield f"This card was written with {versions}."
    if facts.checkpoints:
        newest = facts.checkpoints[-1]
        yield f"Checkpoint of step {newest.step:,}: the hash of its manifest is `{newest.hash}`."
    yield "To see which documents a step read: `prep trace RUN --train MODEL_DIR --step N`."


def _command(facts: RunFacts) -> str:
    log = facts.model_dir / LATEST
    if not log.is_file():
        return ""
    with open(log, encoding="utf-8", errors="replace") as file:
        command = next((line for line in file if _COMMAND in line), "")
    return _one_line(command.partition(_COMMAND)[2].strip())


def _one_line(text: str) -> str:
    """Text for a block of code, which it cannot end."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown.replace("```", "'''")


REPORT, CARD = "report.html", "README.md"


def write_report(model_dir: Path, places: Sequence[Path] = ()) -> Path:
    """Publish MODEL_DIR/report.html; returns its path. `places`: as of `locate_data_sets`.
    Raises InputError for a directory without a run, or a place without its data; IntegrityError
    for damage."""
    facts, data = _read(model_dir, places)
    path = model_dir / REPORT
    storage.publish(path, render_training_report(facts, data))
    return path


def write_card(model_dir: Path, out: Path | None = None, places: Sequence[Path] = ()) -> Path:
    """Publish a model card, MODEL_DIR/README.md without `out`; returns its path. Raises as
    `write_report`, and ConfigError when the file is there: a card may have been edited."""
    path = model_dir / CARD if out is None else out
    if path.exists():
        raise ConfigError(f"{path}: this file already exists; choose another with --out")
    facts, data = _read(model_dir, places)
    storage.publish(path, render_card(facts, data))
    return path


def _read(model_dir: Path, places: Sequence[Path]) -> tuple[RunFacts, tuple[ReportedDataSet, ...]]:
    facts = read_run_facts(model_dir)
    return facts, find_data_sets(facts.record, locate_data_sets(model_dir, places, facts.samples))
