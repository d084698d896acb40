"""Short ways to ask a running chat about its tree."""

from typing import Any


def last(c: Any) -> Any:
    return c.app.session.last


def answers(c: Any) -> list[str]:
    return [node.text for node in c.app.session.tree.nodes.values() if node.role == "assistant"]


async def transcript(c: Any, *keys: str) -> None:
    c.app.transcript.focus()
    await c.pilot.press(*keys)
    await c.pilot.pause(0.05)
    await c.idle()
