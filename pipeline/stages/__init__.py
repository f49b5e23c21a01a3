"""One file per stage: a job dataclass, a task function, and a function that builds the stage."""
