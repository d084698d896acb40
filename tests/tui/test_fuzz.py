"""Any keys, clicks and sizes from every screen: no draft is lost, nothing is sent without Enter or raised."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fakes import STORY, FakeEngine
from repeats import repeats
from textual import events

from ropechat.store.store import Store

RUNS = 4
LENGTH = 12  # keys, clicks and sizes of a sequence
SMALL = range(1, 13)  # cells or rows
SIZES = ((80, 24), (160, 45), (60, 20))
OPENERS: tuple[tuple[str, ...], ...] = (
    *(((key,)) for key in ("f1", "f2", "f4", "f5", "f6", "f7", "f9", "ctrl+p", "ctrl+f", "escape", "ctrl+r")),
    *(("escape", "left"), ("escape", "left", "enter"), ("escape", "left", "f"), ("f5", "equals_sign")),
    (),
)
KEYS = (
    *("escape", "tab", "shift+tab", "enter", "ctrl+n", "ctrl+f", "ctrl+l", "ctrl+r", "ctrl+c", "space"),
    *("f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "ctrl+p"),
    *("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "backspace"),
    *("ctrl+t", *"hjklwbnNiTtzfpecEyY=[]ordx+-12345/"),
)
FATAL = ("^x", "^d", "^q")  # what deletes or quits, and means it


def is_laid_out(transcript: Any) -> bool:
    """Whether each row in sight shows its text; a block whose lines are only estimated shows nothing."""
    top = round(transcript.scroll_y)
    spots = (transcript.page.spot(y) for y in range(top, top + transcript.size.height))
    return all(transcript.blocks[spot.block].laid_out for spot in spots if spot is not None)


class Fuzzed:
    """A chat under random keys. markers: characters that were typed into drafts."""

    def __init__(self, c: Any, store: Store, seed: int) -> None:
        self.c, self.store, self.seed = c, store, seed
        self.chance = random.Random(seed)
        self.markers: list[str] = []
        self.unasked: list[str] = []  # texts that were sent without Enter in the composer
        self.entered = False
        self.trail: list[str] = []
        send, press = c.app.writing.send, c.app.keyboard.press

        def sent(text: str) -> bool:
            if not self.entered and not (self.writing and self.trail[-1] == "enter"):
                self.unasked.append(text)
            return bool(send(text))

        def clicked(symbol: str) -> None:
            if symbol == "⏎":
                self.entered = True  # that is Enter
            if symbol not in FATAL:
                press(symbol)

        c.app.composer._send, c.app.keyboard.press = sent, clicked

    @property
    def writing(self) -> bool:
        """Whether the composer has the keys."""
        return not self.c.app.ui.covered and self.c.app.ui.chat_focus is self.c.app.composer

    async def act(self) -> None:
        """One key or click, some keys at once, a move of the mouse, or another size."""
        c, chance = self.c, self.chance
        kind = chance.random()
        if kind < 0.06:
            await self.burst([chance.choice(KEYS)] * 2 + chance.choices(KEYS, k=2))
            return
        if kind < 0.14:
            size = chance.choice((*SIZES, (chance.choice(SMALL), chance.choice(SMALL))))
            self.trail.append("{}x{}".format(*size))
            await c.pilot.resize_terminal(*size)
            return
        x, y = chance.randrange(c.app.size.width), chance.randrange(c.app.size.height)
        kind = chance.random()
        if kind < 0.25:
            self.trail.append(f"click {x},{y}")
            await c.pilot.click(offset=(x, y), times=chance.choice((1, 1, 2)))
        elif kind < 0.3:
            self.trail.append(f"hover {x},{y}")
            await c.pilot.hover(offset=(x, y))
        elif kind < 0.5 and self.writing:
            self.markers.append(chr(0x4E00 + len(self.markers) % 20000))
            self.trail.append(self.markers[-1])
            await c.pilot.press(self.markers[-1])
        else:
            await self.press(chance.choice(KEYS))

    async def press(self, key: str) -> None:
        """One key, unless it would send or delete what was typed."""
        if self.writing and (key == "backspace" or (key == "enter" and self.c.app.composer.text.strip())):
            return
        self.trail.append(key)
        await self.c.pilot.press(key)

    async def burst(self, keys: list[str]) -> None:
        """Some keys before the first has done its work, unless Enter could send a draft."""
        if "enter" in keys:
            keys = ["enter"] * 2 if self.c.app.ui.covered else []
        self.trail.append("+".join(keys))
        for key in keys:
            self.c.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await self.c.pilot.pause()

    def check(self) -> None:
        where = f"seed {self.seed}: {' '.join(self.trail)}"
        assert self.c.app._exception is None, where
        assert not self.unasked, f"{where}: sent {self.unasked}"
        transcript = self.c.app.transcript
        assert is_laid_out(transcript), where
        drawn = [transcript.render_line(y).text for y in range(transcript.size.height)]
        transcript.redraw()
        assert drawn == [transcript.render_line(y).text for y in range(transcript.size.height)], where
        composer = self.c.app.composer
        held = [composer.text, composer._aside or "", *composer._texts.values(), *composer.sent]
        lost = [marker for marker in self.markers if not any(marker in text for text in held)]
        if lost:
            self.c.app.drafts.keep()
            chats = ["", *(one.id for one in self.store.conversations().result())]
            stored = "".join(
                bytes(self.store.draft(chat).result(), "ascii").decode("unicode_escape") for chat in chats
            )
            lost = [marker for marker in lost if marker not in stored]
        assert not lost, f"{where}: {lost} lost"


@pytest.mark.slow
@repeats(2, 2500)
@pytest.mark.parametrize("run", range(RUNS))
async def test_any_keys_and_clicks(count: int, run: int, chat: Any, tmp_path: Any) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    store = Store(tmp_path / "data")
    done = 0
    while done < count:
        size = SIZES[(run + done) % len(SIZES)]
        thought = "First a plan.\nThen a word. " * 6 if (run + done) % 2 else ""
        engine = FakeEngine([STORY, "two", "three four five"], thought=thought, context=4000)
        async with chat(engine, size=size, store=store) as c:
            await c.ask("Tell")
            await c.idle()
            c.app.drafts.keep()
            fuzz = Fuzzed(c, store, seed + done)
            while c.app.is_running and done < count and len(fuzz.trail) < 40 * LENGTH:
                done += 1
                fuzz.entered = False
                await c.pilot.press("escape", "escape", "escape")
                for key in fuzz.chance.choice(OPENERS):
                    await fuzz.press(key)
                for _ in range(LENGTH):
                    if c.app.is_running:
                        await fuzz.act()
                if c.app.is_running:
                    fuzz.check()
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("opener", OPENERS, ids="+".join)
async def test_any_screen_at_any_size(opener: tuple[str, ...], chat: Any) -> None:
    """Textual wraps to no cells beside paddings and scrollbars; the chat must not end there."""
    async with chat(FakeEngine([STORY]), size=(80, 24)) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press(*opener)
        for width in (1, 2, 3, 4, 5, 7, 10):
            for height in (1, 2, 6, 24):
                await c.pilot.resize_terminal(width, height)
                await c.pilot.pause()
                assert c.app._exception is None, (width, height)
                assert is_laid_out(c.app.transcript), (width, height)
        await c.pilot.resize_terminal(80, 24)
        await c.pilot.pause()
        assert is_laid_out(c.app.transcript)
