"""Which stages a run has, from the catalogue."""

from pipeline.runs.catalogue import STAGES, STORIES, is_off_by_default


def stages_by_default(story: str = "prepare") -> tuple[str, ...]:
    """The stages of a command with a default config and small raw shards, in order."""
    return tuple(name for name in STORIES[story].stages if not is_off_by_default(name))


def stages_called_for_by(*causes: str) -> tuple[str, ...]:
    """The stages that one of these calls for and no other cause does, in order."""
    return tuple(
        name
        for name, entry in STAGES.items()
        if entry.called_for_by and set(entry.called_for_by) <= set(causes)
    )
