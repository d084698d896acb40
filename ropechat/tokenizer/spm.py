"""Conversion of SentencePiece scores to the list of merges of byte-pair encoding.

SentencePiece joins the two neighbours whose joint text has the best score, leftmost first. Byte-pair encoding
joins the pair that comes first in its list. So the list has every split of a token into two tokens, sorted by
the token's score. Of equal scores the longer left part comes first, as in transformers' conversion: then a
run of one character grows from its left end, as SentencePiece joins it (Mistral's runs of spaces have one
score).
"""

from collections import Counter
from collections.abc import Mapping, Sequence


def merges_of(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges, best first. ids: tokens that text may be merged into. scores: by id."""
    found = []
    for token, id in ids.items():
        for cut in range(1, len(token)):
            if token[:cut] in ids and token[cut:] in ids:
                found.append((-scores[id], -cut, -len(token), id, token))
    found.sort()
    return [(token[:-left], token[-left:]) for _, left, _, _, token in found]


def share_of_commonest_score(ids: Mapping[str, int], scores: Sequence[float]) -> float:
    """The share (0 to 1) of tokens of at least two characters that have the most common score."""
    counts = Counter(scores[id] for token, id in ids.items() if len(token) > 1)
    return max(counts.values(), default=0) / max(counts.total(), 1)
