"""Log-likelihood of whole sentences."""

from collections.abc import Sequence

from pipeline.core.errors import InputError, escape_text
from pipeline.core.words import pluralise
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.loaded import LoadedModel
from trainer.evaluation.scoring import score_all
from trainer.generation.text import encode_text


def likelihoods(
    loaded: LoadedModel,
    tokenizer: TokenizerDefinition,
    sentences: Sequence[str],
    batch_size: int = 8,
) -> list[float]:
    """Nats of every sentence as the start of a document, which is after EOS.

    Raises InputError naming a sentence of more than MSL tokens.
    """
    texts = [([tokenizer.eos_id], encode_text(tokenizer, sentence)) for sentence in sentences]
    length = loaded.config.max_position_embeddings
    for sentence, (_, ids) in zip(sentences, texts, strict=True):
        if len(ids) > length:
            raise InputError(
                f"the sentence {escape_text(sentence, 60)!r} has {pluralise(len(ids), 'token')}, "
                f"but the model reads at most {length:,}"
            )
    return [score.logprob for score in score_all(loaded, texts, batch_size)]
