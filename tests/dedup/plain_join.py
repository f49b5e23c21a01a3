"""Buckets by dictionaries and labels one by one, to compare the join with."""

from collections import defaultdict

from dedup.arrays import U32, U64

Runs = list[tuple[U64, U32]]


def plain_buckets(digests: list[int], new_from: int = 0) -> list[list[int]]:
    """Documents by digest, in ascending order of both."""
    groups = defaultdict(list)
    for document, one in enumerate(digests):
        groups[one].append(document)
    found = [groups[one] for one in sorted(groups)]
    return [group for group in found if len(group) > 1 and max(group) >= new_from]


def plain_labels(count: int, groups: list[list[int]]) -> list[int]:
    labels = list(range(count))
    for group in groups:
        wanted = {labels[document] for document in group}
        labels = [min(wanted) if label in wanted else label for label in labels]
    return labels
