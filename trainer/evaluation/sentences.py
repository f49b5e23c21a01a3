"""Log-likelihood of whole sentences."""

from collections.abc import Sequence

from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.loaded import LoadedModel
from trainer.evaluation.scoring import score_all
from trainer.generation.text import encoded


def likelihoods(
    loaded: LoadedModel,
    tokenizer: TokenizerDefinition,
    sentences: Sequence[str],
    batch_size: int = 8,
) -> list[float]:
    """Nats of every sentence as the start of a document, which is after EOS."""
    texts = [([tokenizer.eos_id], encoded(tokenizer, sentence)) for sentence in sentences]
    return [score.logprob for score in score_all(loaded, texts, batch_size)]
