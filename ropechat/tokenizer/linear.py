r"""Recognition of regexes whose form guarantees matching in linear time.

`is_linear` accepts a regex if each alternative is of one of two kinds, and returns False when in doubt.

Plain ones, such as `\p{L}+`, ` ?[^\s\p{L}]+[\r\n]*`, `(?i:'s|'t)`, `[0-9]{1,3}`: characters, classes and
groups of them, repeated a bounded number of times; then at most one that is repeated without bound, after
which all may be empty. One fails after a bounded number of steps, or its time is in proportion to its match.
A possessive repeat (`?+`, `*+`, `++`) tries fewer ways than the plain one.

White space at the end, `\s*[\r\n]+|\s+(?!\S)|\s+` or parts of that: the first may scan a whole run without a
match, but then another one matches all of the run but one character, so a run is scanned a few times at most.
"""

import re

_CLASS = r"\[\^?(?:\\.|[^\[\]\\])+\]"
_GROUP = rf"\(\?i?:(?P<body>(?:\\.|{_CLASS}|[^()\[\]\\])+)\)"
_NEW_LINES = (r"\s*[\r\n]+", r"\s*[\r\n]", r"\s*\n+", r"\s*\n")
_INNER_SPACES = r"\s+(?!\S)"
_SPACES = r"\s+"
_BRANCH = re.compile(rf"(?:\(\?!\\S\)|\\.|{_CLASS}|{_GROUP}|[^()\[\]\\|])+")
_ATOM = r"\\[pP]\{\^?[\w=]+\}|\\[dDsSwWrntfv]|\\[^\w\s]|" + _CLASS + r"|[^\\\[\](){}|.^$?*+]|\."
_REPEAT = r"[?*+]\+?|\{(?P<low>\d{1,4})(?P<comma>,(?P<high>\d{0,4}))?\}"
_PART = re.compile(rf"(?:{_GROUP}|{_ATOM})(?P<repeat>{_REPEAT})?(?![?*+{{])")
_REPEATS = {"": (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}
_MAX_WAYS = 64  # repetitions, and ways to match what is bounded


def is_linear(regex: str) -> bool:
    """Whether a regex has one of the forms above. False does not mean that it is slow."""
    branches = _alternatives(regex)
    if branches is None:
        return False
    takes_runs = False
    for tail in (_SPACES, _INNER_SPACES):
        if branches and branches[-1] == tail:
            branches.pop()
            takes_runs = True
    if takes_runs and branches and branches[-1] in _NEW_LINES:
        branches.pop()
    return all(_ways(branch, may_be_endless=True) is not None for branch in branches)


def _alternatives(text: str) -> list[str] | None:
    """The alternatives at the top level; None if the regex cannot be parsed."""
    found, place = [], 0
    while match := _BRANCH.match(text, place):
        found.append(match[0])
        if match.end() == len(text):
            return found
        if text[match.end()] != "|":
            break
        place = match.end() + 1
    return None


def _ways(branch: str, *, may_be_endless: bool) -> int | None:
    """Number of ways in which a plain alternative can match its bounded part; None for too many or others."""
    ways, place, is_endless = 1, 0, False
    while place < len(branch):
        part = _PART.match(branch, place)
        if part is None:
            return None
        place = part.end()
        low, high = _bounds(part)
        within = 1 if part["body"] is None else _ways_of_group(part["body"])
        if within is None or (is_endless and low) or low > _MAX_WAYS:
            return None
        if high is None:
            if not may_be_endless or part["body"] is not None:
                return None
            is_endless = True
        elif high > _MAX_WAYS or (ways := ways * within**high * (high - low + 1)) > _MAX_WAYS:
            return None
    return ways


def _ways_of_group(body: str) -> int | None:
    total = 0
    for branch in _alternatives(body) or [""]:
        ways = _ways(branch, may_be_endless=False) if branch else None
        if ways is None:
            return None
        total += ways
    return total


def _bounds(part: re.Match[str]) -> tuple[int, int | None]:
    """(minimum, maximum) repetitions; None: unbounded."""
    if part["low"] is None:
        return _REPEATS[(part["repeat"] or "")[:1]]
    low = int(part["low"])
    return low, low if part["comma"] is None else int(part["high"]) if part["high"] else None
