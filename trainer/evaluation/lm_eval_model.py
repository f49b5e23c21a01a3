"""A trained model as lm-eval sees one. Needs the extra `eval`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.core.words import pluralise
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.scoring import score_all, score_text
from trainer.generation.loaded import LoadedModel
from trainer.generation.text import (
    GenerationOptions,
    Sampling,
    begin_text,
    encode_text,
    generate_text,
)

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    Requests = Sequence[Instance]

try:
    from lm_eval.api.model import TemplateLM
    from tqdm import tqdm
except ImportError:  # `run_tasks` says so; tools that import every module get past this one
    TemplateLM = object

_MOST_NEW_TOKENS = 256


class WafermillLM(TemplateLM):  # type: ignore[misc]
    """Scores and writes texts; `TemplateLM` splits them into context and continuation. A text
    without context is scored after EOS. Context beyond the MSL is cut on the left."""

    def __init__(
        self, loaded: LoadedModel, tokenizer: TokenizerDefinition, batch_size: int = 8
    ) -> None:
        super().__init__()
        self._loaded = loaded
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._truncated: set[tuple[str, int]] = set()

    def n_truncated(self, task: str) -> int:
        """Documents of a task with a context that was cut so far."""
        return sum(name == task for name, _ in self._truncated)

    @property
    def eot_token_id(self) -> int:
        """EOS, which stands before a text too, unless BOS does."""
        return self._tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text."""
        return begin_text(self._tokenizer, [])[0]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids; no special tokens are ever added."""
        return encode_text(self._tokenizer, string)

    def loglikelihood(
        self, requests: "Requests", disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Nats of every continuation after its context, and whether it is the likeliest one.
        Raises InputError for a continuation of more than MSL tokens."""
        length = self._loaded.config.max_position_embeddings
        texts = []
        for request in requests:
            context, continuation = self._encode_pair(*request.args)
            if len(continuation) > length:
                raise InputError(
                    f"{request.task_name}, document {request.doc_id} (from 0): an answer has "
                    f"{pluralise(len(continuation), 'token')}, but the model reads at most "
                    f"{length:,}"
                )
            if len(context) + len(continuation) > length + 1:
                self._truncated.add((request.task_name, request.doc_id))
            texts.append((request.args, context, continuation))
        return self._loglikelihood_tokens(texts, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(
        self, requests: "Requests", disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood in nats of whole texts, each token of which is predicted once."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        first = self.prefix_token_id
        return [score_text(self._loaded, ids, first, self._batch_size) for ids in texts]

    def generate_until(self, requests: "Requests", disable_tqdm: bool = False) -> list[str]:
        """Texts that continue contexts, up to a stop string, EOS or `max_gen_toks`."""
        texts = []
        for request in requests:
            context, options = request.args
            until, samples = options.get("until") or (), options.get("do_sample")
            temperature = float(options.get("temperature") or 0.0) if samples else 0.0
            wish = GenerationOptions(
                max_new_tokens=int(options.get("max_gen_toks", _MOST_NEW_TOKENS)),
                sampling=Sampling(temperature, options.get("top_k"), options.get("top_p")),
                stop=(until,) if isinstance(until, str) else tuple(until),
            )
            texts.append(generate_text(self._loaded, self._tokenizer, context, wish).text)
        return texts

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        texts = [(context, continuation) for _, context, continuation in requests]
        with tqdm(total=len(texts), desc="texts scored", disable=disable_tqdm) as bar:
            scores = score_all(self._loaded, texts, self._batch_size, bar.update)
        return [(score.logprob, score.is_greedy) for score in scores]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm-eval: spaces between both belong to the continuation, no context is BOS or EOS."""
        if not context.strip():
            return [self.prefix_token_id], self.tok_encode(context + continuation)
        before, after = super()._encode_pair(context, continuation)
        return begin_text(self._tokenizer, before), after
