"""SentencePiece's merging by score, as the list of merges that byte-pair encoding wants.

SentencePiece joins the two neighbours whose joint text has the best score, the leftmost first. Byte-pair
encoding joins the pair that stands first in a list: every way to cut a token into two tokens, by the token's
score and, for one token, by the ids of its parts. The two agree as long as scores tell tokens apart.
"""

from collections import Counter
from collections.abc import Mapping, Sequence


def merges_of(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges, best first. ids: the tokens that text may be merged into. scores: by id."""
    found = []
    for token, id in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[id], left, right, token, cut))
    found.sort()
    return [(token[:cut], token[cut:]) for *_, token, cut in found]


def share_of_commonest_score(ids: Mapping[str, int], scores: Sequence[float]) -> float:
    """How many of the tokens of two characters and more share one score, 0 to 1."""
    counts = Counter(scores[id] for token, id in ids.items() if len(token) > 1)
    return max(counts.values(), default=0) / max(counts.total(), 1)
