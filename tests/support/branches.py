"""Short ways to ask a running chat about its tree."""

from typing import Any

from ropechat.tui.render.cursor import TokenPlace


def last(c: Any) -> Any:
    return c.app.session.last


def answers(c: Any) -> list[str]:
    return [node.text for node in c.app.session.tree.nodes.values() if node.role == "assistant"]


async def told(c: Any, line: str) -> str:
    """The footer's answer to a typed line."""
    await c.ask(line)
    await c.pilot.pause(0.05)
    await c.idle()
    return str(c.line("footer"))


async def transcript(c: Any, *keys: str) -> None:
    """Press keys where letters are commands: on a token."""
    await read(c)
    await c.pilot.press(*keys)
    await c.pilot.pause(0.05)
    await c.idle()


async def read(c: Any) -> None:
    """Put the cursor on a token in sight, if it is on none, as keys do."""
    c.app.transcript.focus()
    await c.pilot.pause(0)
    if c.app.transcript.cursor is None:
        await c.pilot.press("right")


def at_token(c: Any, index: int) -> None:
    """Read at a token of the newest answer that has tokens."""
    block = [one for one in c.app.transcript.blocks if getattr(one, "steps", ())][-1]
    c.app.transcript.move_to(TokenPlace(block, index))
    c.app.transcript.focus()
