"""Pairs of texts whose Jaccard similarity is known."""

from benchmarks.dedup.peers.shingling import normalize, shingle_set

PAIR_CHARACTERS = 1_500


def similar_pairs(texts: list[str], count: int, unit: str) -> tuple[list[str], list[float]]:
    """Pairs of normalised texts whose Jaccard similarity is spread evenly over [0.5, 1).

    The second text of a pair is the first with its tail replaced by the tail of an unrelated text,
    so long that about the wanted share of shingles is left. Returns 2 * count texts (the two of a
    pair stand side by side) and the exact similarity of each pair over sets of shingles.
    """
    cleaned = (normalize(text)[:PAIR_CHARACTERS] for text in texts)
    long_enough = [text for text in cleaned if len(text) == PAIR_CHARACTERS]
    pairs: list[str] = []
    exact: list[float] = []
    for index in range(count):
        wanted = 0.5 + 0.5 * index / count
        first = long_enough[2 * index % len(long_enough)]
        other = long_enough[(2 * index + 1) % len(long_enough)]
        shared = round(PAIR_CHARACTERS * 2 * wanted / (1 + wanted))
        second = first[:shared] + other[shared:]
        similarity = exact_jaccard(shingle_set(first, unit), shingle_set(second, unit))
        pairs += [first, second]
        exact.append(similarity)
    return pairs, exact


def exact_jaccard(first: set[str], second: set[str]) -> float:
    """|A & B| / |A | B|; 0.0 when both are empty."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0
