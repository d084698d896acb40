"""What was typed and not sent, by chat: rows of the table `draft`.

The draft of a chat that is not stored yet belongs to its program; when that has ended, the next program that
begins a new chat takes it over.
"""

import sqlite3
import time
from collections.abc import Callable

UNSTORED = ":"  # before the owner's name: the place of a chat that is not stored; no id contains it


def put_draft(connection: sqlite3.Connection, chat: str, owner: str, data: str) -> None:
    """Keep the draft of a chat, "" of one that is not stored; without data it is removed."""
    place = chat or UNSTORED + owner
    if data:
        connection.execute(
            "INSERT OR REPLACE INTO draft(place, owner, data, changed) VALUES(?, ?, ?, ?)",
            (place, owner, data, time.time()),
        )
    else:
        connection.execute("DELETE FROM draft WHERE place = ?", (place,))


def take_draft(
    connection: sqlite3.Connection, chat: str, owner: str, is_running: Callable[[str], bool]
) -> str:
    """The draft of a chat; of one that is not stored: the owner's, or the newest of an ended program."""
    place = chat or UNSTORED + owner
    row = connection.execute("SELECT CAST(data AS TEXT) FROM draft WHERE place = ?", (place,)).fetchone()
    if row is not None or chat:
        return "" if row is None else str(row[0])
    query = (
        "SELECT place, CAST(owner AS TEXT), CAST(data AS TEXT) FROM draft "
        "WHERE substr(place, 1, 1) = ? ORDER BY changed DESC"
    )
    for other, of, data in connection.execute(query, (UNSTORED,)).fetchall():
        if not is_running(of):
            connection.execute("UPDATE draft SET place = ?, owner = ? WHERE place = ?", (place, owner, other))
            return str(data)
    return ""
