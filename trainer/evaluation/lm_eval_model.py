"""A trained model as lm-eval sees one. Needs the extra `eval`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.loaded import LoadedModel
from trainer.evaluation.scoring import score_all, score_text
from trainer.generation.sampling import Sampling
from trainer.generation.text import Wish, encoded, generate

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    Requests = Sequence[Instance]

try:
    from lm_eval.api.model import TemplateLM
except ImportError:  # `run_tasks` says so; tools that import every module get past this one
    TemplateLM = object

_MOST_NEW_TOKENS = 256


class WafermillLM(TemplateLM):  # type: ignore[misc]
    """Scores and writes texts; `TemplateLM` splits them into context and continuation.

    A text without context is scored after EOS. Context beyond the MSL is cut on the left.
    """

    def __init__(
        self, loaded: LoadedModel, tokenizer: TokenizerDefinition, batch_size: int = 8
    ) -> None:
        super().__init__()
        self._loaded = loaded
        self._tokenizer = tokenizer
        self._batch_size = batch_size

    @property
    def eot_token_id(self) -> int:
        """EOS, which stands before a text too."""
        return self._tokenizer.eos_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids; no special tokens are ever added."""
        return encoded(self._tokenizer, string)

    def loglikelihood_rolling(
        self, requests: "Requests", disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood in nats of whole texts, each token of which is predicted once."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        return [score_text(self._loaded, ids, self.eot_token_id, self._batch_size) for ids in texts]

    def generate_until(self, requests: "Requests", disable_tqdm: bool = False) -> list[str]:
        """Texts that go on from contexts, up to a stop string, EOS or `max_gen_toks`."""
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or ()
        temperature = float(options.get("temperature") or 0.0) if options.get("do_sample") else 0.0
        wish = Wish(
            max_new_tokens=int(options.get("max_gen_toks", _MOST_NEW_TOKENS)),
            sampling=Sampling(temperature, options.get("top_k"), options.get("top_p")),
            stop=(until,) if isinstance(until, str) else tuple(until),
        )
        return generate(self._loaded, self._tokenizer, context, wish).text

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        texts = [(context, continuation) for _, context, continuation in requests]
        try:
            scores = score_all(self._loaded, texts, self._batch_size)
        except InputError as error:
            raise InputError(f"lm-eval: {error}") from error
        return [(score.logprob, score.is_greedy) for score in scores]
