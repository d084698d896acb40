"""The app under tests/bench/screen.py: python screen_app.py CASE REPORT, in a pseudo-terminal."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from fakes import FakeEngine, fake_step, pieces  # noqa: E402
from textual.timer import Timer  # noqa: E402

from ropechat.chat.live import LiveChat  # noqa: E402
from ropechat.conversation import Message  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.trace import Step  # noqa: E402
from ropechat.tui import app  # noqa: E402
from ropechat.tui.render.blocks import AnswerBlock, Block  # noqa: E402
from ropechat.tui.terminal import gc_pause  # noqa: E402

BEAT = 0.01
QUIET = (2.0, 4.0)  # seconds after the end in which no timer may tick
SENTENCE = (
    "the model reads every *token* and then `predicts` another one, which is **never** quite what it was "
    "told, because a distribution over words has long tails and short memories of what came before"
)
WORDS = SENTENCE.split()


def script(kind: str, characters: int, draw: random.Random) -> str:
    """An answer of one kind."""

    def words(count: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(count))

    def lines() -> Iterator[str]:
        if kind == "table":
            yield "| name | what it does | how often |\n|:--|---|--:|\n"
        if kind == "fence":
            yield "```python\n"
        number = 0
        while True:
            number += 1
            if kind == "list":
                yield f"- item {number} {words(9)}\n"
            elif kind == "table":
                yield f"| {words(2)} | {words(7)} | {number} |\n"
            elif kind == "fence":
                yield f"def step_{number}(x: int) -> int:\n    return x * {number}  # {words(4)}\n"
            else:
                yield f"{words(70)}\n\n"

    text = ""
    for line in lines():
        text += line
        if len(text) >= characters:
            return text + ("```\n" if kind == "fence" else "")
    return text


class Paced(FakeEngine):
    """Tokens at a rate that the screen cannot slow down."""

    def __init__(self, text: str, rate: float, mark: str) -> None:
        super().__init__(text, context=10**9)
        self.tokens = [*pieces(text), b"\n\n", mark.encode()]
        self.pace = rate
        self.begun = self.ended = 0.0

    def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        prefix: Sequence[int] = (),
        top_k: int = 0,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[Step]:
        """Token i is due i / rate seconds after the first."""
        steps = [
            fake_step(index, token, token.decode(), None, index, top_k)
            for index, token in enumerate(self.tokens)
        ]
        self.begun = time.monotonic()
        for index, step in enumerate(steps):
            due = self.begun + index / self.pace
            while (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            self.ended = time.monotonic()
            yield step


class Measured(app.ChatApp):
    """The chat with a heartbeat; it asks by itself and leaves when all is measured."""

    CSS_PATH = Path(app.__file__).with_name("app.tcss")

    def __init__(self, engine: Paced, case: dict[str, Any], report: Path) -> None:
        super().__init__(LiveChat(lambda: engine, "models/fake", Sampling(max_tokens=10**9)))
        self.paced, self.case, self.report = engine, case, report

    def on_mount(self) -> None:
        """Begin once the app runs."""
        self.drive = asyncio.create_task(self._measure())

    async def _measure(self) -> None:
        while self.session.info is None:
            await asyncio.sleep(0.05)
        self._fill()
        if self.case["view"] == "prose":
            self.ui.run("view.toggle")
        await asyncio.sleep(4.0)  # the hint goes away
        self.composer.set_text("Go")
        self.writing.send(self.composer.text)
        blocks = await self._beat()
        ticks = await self._late_ticks()
        blocks.sort()
        answer = self.session.last.answer if self.session.last else None
        found = {
            "begun": self.paced.begun,
            "ended": self.paced.ended,
            "tokens": len(answer.node.steps) if answer else 0,
            "p50": round(1000 * blocks[len(blocks) // 2], 1),
            "p99": round(1000 * blocks[int(len(blocks) * 0.99)], 1),
            "max": round(1000 * blocks[-1], 1),
            "late": ticks,
        }
        self.report.write_text(json.dumps(found))
        await self.action_quit()

    def _fill(self) -> None:
        draw = random.Random(3)
        for number in range(self.case["earlier"]):
            if number % 2:
                block: Block = AnswerBlock("answer", "fake")
                kind = draw.choice(("prose", "list", "table", "fence"))
                block.say(script(kind, 1200, draw))
            else:
                block = Block("user", "you")
                block.say(f"Question {number}?")
            self.transcript.add(block)

    async def _beat(self) -> list[float]:
        blocks: list[float] = []
        last = time.thread_time()
        while self.session.generating or self.inference.busy:
            await asyncio.sleep(BEAT)
            now = time.thread_time()
            blocks.append(now - last)
            last = now
        return blocks

    async def _late_ticks(self) -> int:
        await asyncio.sleep(QUIET[0])
        ticks = 0
        original = Timer._tick

        async def counted(timer: Timer, *args: Any, **kwargs: Any) -> None:
            nonlocal ticks
            ticks += 1
            await original(timer, *args, **kwargs)

        Timer._tick = counted  # type: ignore[method-assign]
        await asyncio.sleep(QUIET[1] - QUIET[0])
        return ticks


def main() -> None:
    """Run the case."""
    case = json.loads(sys.argv[1])
    text = script(case["kind"], case["characters"], random.Random(7))
    gc_pause.start()  # as in the real program
    Measured(Paced(text, case["rate"], case["mark"]), case, Path(sys.argv[2])).run()


if __name__ == "__main__":
    main()
