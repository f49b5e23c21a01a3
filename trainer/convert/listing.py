"""What `train convert --list` prints."""

from trainer.convert.families import FAMILIES, PLANNED
from trainer.convert.modelzoo import RELEASES


def listing() -> str:
    """Formats and families, one a line."""
    lines = [
        "formats",
        "  wafermill   checkpoint or model directory of `train` (from and to)",
        "  hf          Hugging Face: safetensors, .bin with --unsafe-pickle (from and to)",
        "  mdl         .mdl file with the names of Model Zoo R2.1 to R2.9 (from and to)",
        f"  cs-X.Y      .mdl or, with --unsafe-pickle, .pt of release {RELEASES[0]} to "
        f"{RELEASES[-1]} (from)",
        "families of hf",
    ]
    for family in FAMILIES.values():
        lines.append(f"  {family.name:<11} {family.architecture:<20} {family.verified}")
    lines.append(f"planned: {', '.join(PLANNED)}")
    return "\n".join(lines)
