"""The commands of `prep`, one file each: options in, one call, printed results."""
