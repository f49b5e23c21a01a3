"""A loss and the text it was measured on, and the units that losses are told in."""

import math
from dataclasses import dataclass
from typing import Any

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Amount:
    """Losses of some labels, added up.

    `loss_sum`: nats; `n_counted`: labels; `n_bytes`: of the UTF-8 text they stand for, an EOS
    counting 0, None where no tokenizer tells; `reference_tokens`: of the same text in another
    vocabulary, each EOS counting 1, None where none was asked for.
    """

    loss_sum: float
    n_counted: int
    n_bytes: int | None = None
    reference_tokens: int | None = None

    @property
    def loss(self) -> float:
        """Nats per counted label; NaN without labels."""
        return self.loss_sum / self.n_counted if self.n_counted else math.nan

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is too large for a float."""
        return math.exp(self.loss) if self.loss < _LARGEST_EXPONENT else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text, the same unit for every vocabulary."""
        return bits_per_byte(self.loss_sum, self.n_bytes) if self.n_bytes else None

    @property
    def reference_loss(self) -> float | None:
        """Nats per token of the other vocabulary."""
        if not self.reference_tokens:
            return None
        return corrected_loss(self.loss, self.n_counted, self.reference_tokens)

    def described(self) -> dict[str, Any]:
        """As JSON values; what is not known is left out."""
        known = {
            "bits_per_byte": self.bits_per_byte,
            "reference_tokens": self.reference_tokens,
            "loss_per_reference_token": self.reference_loss,
        }
        fields: dict[str, Any] = {"loss": self.loss, "n_counted": self.n_counted}
        return fields | {name: value for name, value in known.items() if value is not None}


def bits_per_byte(loss_sum: float, n_bytes: int) -> float:
    """`loss_sum` nats over `n_bytes` bytes of text, in bits per byte.

    >>> round(bits_per_byte(1.386294, 4), 6)
    0.5
    """
    return loss_sum / math.log(2) / n_bytes


def corrected_loss(loss: float, tokens: int, reference_tokens: int) -> float:
    """Nats per token of a reference vocabulary, from nats per token of the model's own.

    The loss of a text is the same whatever it is divided by, so losses of models with another
    vocabulary are corrected by the ratio of token counts on the same text, as in Cerebras-GPT
    (arXiv 2304.03208), whose reference is GPT-2's.

    >>> corrected_loss(2.0, tokens=90, reference_tokens=120)
    1.5
    """
    return loss * tokens / reference_tokens
