"""Ids of tokens of a file that has none: a number for each spelling, below those of real ids."""

FIRST = -2  # -1 stands for the place after a text


class MadeUpIds:
    """Real ids where a file has them, else negative ones. spelled: the bytes of each id."""

    def __init__(self) -> None:
        self.spelled: dict[int, bytes] = {}
        self._made: dict[bytes, int] = {}

    def of(self, data: bytes, id: int | None) -> int:
        """The id of a token. id: the real one."""
        if id is None:
            id = self._made.setdefault(data, FIRST - len(self._made))
        self.spelled.setdefault(id, data)
        return id


def real(id: int) -> int | None:
    """The id for a record; None for one that is made up."""
    return id if id >= 0 else None
