"""Work in the background, each kind in a group of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.dom import DOMNode


def begin(
    node: DOMNode, purpose: str, work: Callable[[], Coroutine[Any, Any, None]], *, replaces: bool = False
) -> None:
    """Run work of a screen or the app in the background.

    replaces: cancel work of the same purpose that is not done; work of another purpose always goes on.
    """

    async def run() -> None:  # makes the coroutine once it starts: one that never starts causes a warning
        await work()

    node.run_worker(run, name=purpose, group=purpose, exclusive=replaces)  # type: ignore[arg-type]
