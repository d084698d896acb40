"""Styles of text for a terminal (ECMA-48, SGR)."""

RESET, BOLD, DIM, REVERSE = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[7m"
_RANK_COLORS = (
    *((1, "\x1b[32m"), (10, "\x1b[36m"), (100, "\x1b[33m"), (1000, "\x1b[35m"), (10_000, "\x1b[31m")),
)
_FAR_COLOR = "\x1b[2;31m"


def rank_color(rank: int | None) -> str:
    """The colour of a token of this rank; dim for an unknown one."""
    if rank is None:
        return DIM
    return next((color for limit, color in _RANK_COLORS if rank <= limit), _FAR_COLOR)


def paint(text: str, code: str, color: bool) -> str:
    """The text in a style, if colours are wanted."""
    return f"{code}{text}{RESET}" if color else text
