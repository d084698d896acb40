"""The chart along an answer or a text: its cursor is that of the text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from branches import last, transcript
from fakes import STORY, FakeEngine

from ropechat.conversation import surprisal_bits
from ropechat.inspector.chart import CURVES
from ropechat.tui.screens.reader import ReaderScreen
from ropechat.tui.widgets.chart_panel import LABEL, ChartPanel, Line

if TYPE_CHECKING:
    from collections.abc import Sequence


def panel_of(c: Any) -> ChartPanel:
    found: ChartPanel = c.app.ui.chart
    return found


async def test_the_cursor_of_the_text_is_that_of_the_chart(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()
        await transcript(c, "v", "right", "right")
        panel, steps = panel_of(c), c.app.session.tree[last(c).node].steps
        place = c.app.transcript.cursor
        assert panel.cursor == place.index
        bits = f"{surprisal_bits(steps[place.index]):.1f} b"
        assert f"token {place.index + 1} of {len(steps)}" in c.screen()
        assert bits in panel.text
        assert list(panel.lines[0].values["surprisal"]) == pytest.approx(list(map(surprisal_bits, steps)))
        assert not c.app.inspector.display
        await c.pilot.click(panel, offset=(LABEL + 30 // panel._each, 3))
        await c.until(lambda: panel.cursor == 30 // panel._each * panel._each)
        assert c.app.transcript.cursor.index == panel.cursor
        assert c.app.transcript.has_focus
        assert not c.app.inspector.display
        await c.pilot.press("enter")  # the inspector takes the place of the chart in a low screen
        await c.until(lambda: c.app.inspector.display and not panel.display)
        await c.pilot.press("v")
        await c.until(lambda: panel.display and not c.app.inspector.display)
        await c.pilot.press("v")
        await c.until(lambda: not panel.display)


async def test_it_grows_with_the_answer(chat: Any) -> None:
    engine = FakeEngine(STORY, rate=1000)
    async with chat(engine, size=(140, 40)) as c:
        await c.ask("Tell")
        await c.until(lambda: c.app.session.generating and bool(last(c).answer.node.steps))
        await c.ask("/chart")
        await c.idle()
        panel = panel_of(c)
        await c.until(lambda: bool(panel.lines) and len(panel.lines[0]) == len(last(c).answer.node.steps))
        assert f"{len(panel.lines[0])} tokens: go to one" in c.screen()


async def test_two_versions_in_one_chart(chat: Any) -> None:
    async with chat(FakeEngine(["One answer.", "Another, longer answer."])) as c:
        await c.ask("Hi?")
        await c.idle()
        await transcript(c, "V")
        assert "no other answer" in c.line("footer")
        await transcript(c, "r")
        await transcript(c, "V")
        panel = panel_of(c)
        first, second = c.app.session.tree.children(last(c).asked)
        assert [len(line) for line in panel.lines] == [len(second.steps), len(first.steps)]
        assert "1: version 2 of 2   2: version 1 of 2" in c.screen()
        assert "surprisal  1" in c.screen()
        await transcript(c, "left_square_bracket")
        assert [len(line) for line in panel.lines] == [len(first.steps)]
        await transcript(c, "V", "V")
        assert len(panel.lines) == 1


async def test_in_the_reader(chat: Any, tmp_path: Path) -> None:
    from ropechat.engine.engine import Engine

    path = tmp_path / "a.txt"
    path.write_text("The capital of France is Paris. " * 20)
    async with chat(lambda: Engine.load("builtin", threads=1)) as c:
        await c.ask(f"/inspect {path}")
        await c.until(lambda: isinstance(c.app.screen, ReaderScreen))
        screen = c.app.screen
        await c.until(lambda: screen.reader.is_done)
        await c.pilot.press("v", "right", "right")
        await c.until(lambda: bool(screen.chart.lines))
        assert screen.chart.cursor == screen.text_view.cursor >= 1
        reader = screen.reader
        line = screen.chart.lines[0]
        assert list(line.values["surprisal"])[1:] == list(reader.bits)[1:]
        shares = [sum(line.at(name, 9) for name in ("chosen", "runner-up", "rest"))]
        assert shares == [pytest.approx(1.0)]
        await c.pilot.click(screen.chart, offset=(LABEL + 20, 3))
        await c.until(lambda: screen.text_view.cursor == 20 * screen.chart._each)
        assert screen.chart.cursor == screen.text_view.cursor
        assert "mean of" in c.screen()
        assert f"token #{screen.text_view.cursor} of {len(reader):,}" in screen.chart.text


class Stage(ChartPanel):
    """A panel of a size without an app."""

    room = (60, 12)

    @property
    def size(self) -> Any:
        from textual.geometry import Size

        return Size(*self.room)


def drawn(lines: Sequence[Line], cursor: int, room: tuple[int, int]) -> list[str]:
    panel = Stage()
    panel.room, panel.lines, panel.cursor = room, list(lines), cursor
    panel._lay()
    return panel.text.split("\n")


def line(*bits: float | None) -> Line:
    shares = [None if one is None else 2.0**-one for one in bits]
    rest = [None if one is None else 1 - one for one in shares]
    return Line("", {"surprisal": bits, "entropy": bits, "chosen": shares, "runner-up": rest, "rest": rest})


def test_bars_scales_and_the_column_of_a_token() -> None:
    rows = drawn([line(None, 1.0, 4.0)], 2, (60, 7))
    assert rows[0] == " token 3 of 3"
    assert rows[1].startswith("surprisal    4.0 b│   ▂▂▂███"), rows[1]
    assert rows[3].startswith("chosen          6%│   ▄▄▄▁▁▁"), rows[3]
    assert rows[-1].strip() == "└      ▲"
    many = drawn([line(*[1.0] * 200)], -1, (70, 7))
    assert many[0] == " 200 tokens: go to one, here or in the text"
    assert many[-1].strip() == "mean of 4 └"
    assert drawn([line()], -1, (60, 7)) == [" No token to draw yet."]


def test_the_varentropy_has_its_own_scale_and_goes_first_where_there_is_no_room() -> None:
    known = line(1.0, 4.0)
    known.values = {**known.values, "varentropy": (1.5, 12.25)}
    rows = drawn([known], 1, (60, 15))
    assert [row.split()[0] for row in rows if row[0].isalpha()] == [*CURVES]
    assert "varentropy   12 b²│" in "\n".join(rows)
    assert "varentropy" not in "\n".join(drawn([known], 1, (60, 7)))
    assert "varentropy" not in "\n".join(drawn([line(1.0)], 1, (60, 15))), "it is not known"


@pytest.mark.parametrize("height", range(1, 16))
@pytest.mark.parametrize("texts", [1, 2])
def test_the_curves_fill_the_height(texts: int, height: int) -> None:
    rows = drawn([line(1.0, 2.0)] * texts, 1, (40, height))
    assert len(rows) == height or height - len(rows) < texts
    assert height < 4 or "└" in rows[-1]
