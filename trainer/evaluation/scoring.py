"""Log-likelihood of a continuation given its context, the core of every task, and of whole
sentences; CrowS-Pairs: is the more stereotyping sentence of a pair the likelier one to the model?

Of context and continuation the model sees the last MSL + 1 tokens, of which the last is label only.
Rows of a batch are padded on the right, which changes no score except by the rounding of another
shape.

CrowS-Pairs: Nangia et al. 2020 (arXiv 2010.00133); Cerebras-GPT (arXiv 2304.03208) reports its nine
categories. A causal model scores a whole sentence after EOS, as lm-eval does, instead of the
pseudo-likelihood of the paper, which is for masked models.

Shapes: B texts of a batch, S tokens of the longest, V vocabulary.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.core.errors import InputError, escape_text
from pipeline.core.words import pluralise
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.generation.loaded import LoadedModel, check_decodes
from trainer.generation.text import begin_text, encode_text

Ids = Sequence[int]


@dataclass(frozen=True)
class Score:
    """`logprob`: sum over the continuation in nats; `is_greedy`: whether no other token is likelier
    than the one that stands there, at any of its places."""

    logprob: float
    is_greedy: bool


def score_all(
    loaded: LoadedModel,
    texts: Sequence[tuple[Ids, Ids]],
    batch_size: int = 8,
    done: Callable[[int], object] = lambda texts: None,
) -> list[Score]:
    """Score every (context, continuation) of token ids, in the order given; `done` is called
    with the size of each batch. Raises ConfigError for an encoder, InputError for an
    empty context (give EOS) or continuation, and for a continuation of more than MSL tokens."""
    check_decodes(loaded.config, loaded.checkpoint.path)
    length = loaded.config.max_position_embeddings
    for context, continuation in texts:
        if not context or not continuation:
            raise InputError("a text to score needs at least one token of context and one to score")
        if len(continuation) > length:
            raise InputError(
                f"a continuation has {pluralise(len(continuation), 'token')}, but the model reads "
                f"at most {length:,}: it cannot be scored as one text"
            )
    sizes = [min(len(context) + len(text), length + 1) for context, text in texts]
    order = sorted(range(len(texts)), key=lambda i: -sizes[i])
    scores: dict[int, Score] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        scores |= zip(batch, _score_batch(loaded, [texts[i] for i in batch]), strict=True)
        done(len(batch))
    return [scores[i] for i in range(len(texts))]


def rolling_windows(ids: Ids, first: int, length: int) -> Iterator[tuple[Ids, Ids]]:
    """(context, continuation) of windows of at most `length` tokens in which every token of a text
    is predicted once; `first` (EOS) stands before it, and the last window sees all it can.

    >>> [(list(a), list(b)) for a, b in rolling_windows([1, 2, 3, 4, 5], 0, 4)]
    [([0], [1, 2, 3, 4]), ([1, 2, 3, 4], [5])]
    """
    whole = [first, *ids]
    for done in range(0, len(ids), length):
        end = min(done + length, len(ids))
        start = max(0, end - length) if done else 0
        yield whole[start : done + 1], whole[done + 1 : end + 1]


def score_text(loaded: LoadedModel, ids: Ids, first: int, batch_size: int = 8) -> float:
    """Log-likelihood in nats of a whole text of any length after `first` (EOS)."""
    windows = list(rolling_windows(ids, first, loaded.config.max_position_embeddings))
    return sum(score.logprob for score in score_all(loaded, windows, batch_size))


def _score_batch(loaded: LoadedModel, texts: Sequence[tuple[Ids, Ids]]) -> list[Score]:
    seen = loaded.config.max_position_embeddings + 1
    whole = [[*context, *continuation][-seen:] for context, continuation in texts]
    rows = [torch.tensor(ids[:-1]) for ids in whole]
    input_ids_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(loaded.device)
    with torch.inference_mode():
        logits_BSV = loaded.model.logits(input_ids_BS)
        scores = []
        for logits_SV, ids, (_, continuation) in zip(logits_BSV, whole, texts, strict=True):
            end = len(ids) - 1
            labels_S = torch.tensor(continuation, device=loaded.device)
            nats_SV = logits_SV[end - len(continuation) : end].float().log_softmax(dim=-1)
            label_S = nats_SV.gather(1, labels_S[:, None])[:, 0]
            greedy = bool((label_S == nats_SV.amax(dim=-1)).all())
            scores.append(Score(float(label_S.double().sum()), greedy))
        return scores


def likelihoods(
    loaded: LoadedModel,
    tokenizer: TokenizerDefinition,
    sentences: Sequence[str],
    batch_size: int = 8,
) -> list[float]:
    """Nats of every sentence as the start of a document, which is after BOS or EOS. Raises
    InputError naming a sentence of more than MSL tokens."""
    texts = [
        (begin_text(tokenizer, []), encode_text(tokenizer, sentence)) for sentence in sentences
    ]
    length = loaded.config.max_position_embeddings
    for sentence, (_, ids) in zip(sentences, texts, strict=True):
        if len(ids) > length:
            raise InputError(
                f"the sentence {escape_text(sentence, 60)!r} has {pluralise(len(ids), 'token')}, "
                f"but the model reads at most {length:,}"
            )
    return [score.logprob for score in score_all(loaded, texts, batch_size)]


CATEGORIES = (
    "age",
    "disability",
    "gender",
    "nationality",
    "physical-appearance",
    "race-color",
    "religion",
    "sexual-orientation",
    "socioeconomic",
)
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of characters, which JSON can hold and UTF-8 cannot."""
_COLUMNS = ("sent_more", "sent_less", "bias_type")


@dataclass(frozen=True)
class SentencePair:
    """`more`: the sentence that stereotypes more; `less`: the other one."""

    more: str
    less: str
    category: str


@dataclass(frozen=True)
class Bias:
    """Over `pairs` pairs: the share in percent of those whose `more` is the likelier sentence (50:
    no preference), and the mean absolute difference of log-likelihoods in nats."""

    pairs: int
    stereotyped: float
    difference: float


def read_pairs(path: Path, limit: int | None = None) -> list[SentencePair]:
    """The pairs of the published crows_pairs_anonymized.csv, or a .jsonl with its columns.
    Raises InputError naming the line that is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    rows: Iterable[Mapping[str, object]]
    rows = _json_rows(path, text) if path.suffix == ".jsonl" else csv.DictReader(io.StringIO(text))
    try:
        pairs = [_pair(path, number, row) for number, row in enumerate(rows, 1)][:limit]
    except csv.Error as error:
        raise InputError(f"{path}: not a csv file: {error}") from error
    if not pairs:
        raise InputError(f"{path}: no pairs")
    return pairs


def measure_bias(
    pairs: Sequence[SentencePair], likelihoods: Callable[[Sequence[str]], Sequence[float]]
) -> dict[str, Bias]:
    """Bias of `all` pairs and of every category there, by name. `likelihoods`: log-likelihood in
    nats of each of some sentences."""
    scores = likelihoods([text for pair in pairs for text in (pair.more, pair.less)])
    differences = [more - less for more, less in zip(scores[0::2], scores[1::2], strict=True)]
    groups = {"all": differences}
    for category in CATEGORIES:
        mine = [d for d, pair in zip(differences, pairs, strict=True) if pair.category == category]
        if mine:
            groups[category] = mine
    biases = {}
    for name, group in groups.items():
        stereotyped = 100 * sum(difference > 0 for difference in group) / len(group)
        biases[name] = Bias(len(group), stereotyped, sum(map(abs, group)) / len(group))
    return biases


def _json_rows(path: Path, text: str) -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected a JSON object")
        rows.append(row)
    return rows


def _pair(path: Path, number: int, row: Mapping[str, object]) -> SentencePair:
    values = [row.get(column) for column in _COLUMNS]
    for column, value in zip(_COLUMNS, values, strict=True):
        is_text = isinstance(value, str) and value.strip() and not _SURROGATE.search(value)
        if not is_text:
            raise InputError(
                f"{path}, pair {number}: no text in {column}; expected {', '.join(_COLUMNS)}"
            )
    more, less, category = map(str, values)
    if category not in CATEGORIES:
        raise InputError(
            f"{path}, pair {number}: bias_type {category!r}; expected one of "
            f"{', '.join(CATEGORIES)}"
        )
    return SentencePair(more, less, category)
