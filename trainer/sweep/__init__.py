"""Search over hyperparameters on a proxy, and what it found carried over to a target by muP."""
