"""The reader of a text, headless: keys, questions, what it shows while it scores."""

import asyncio
import math
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from textual.pilot import Pilot

from ropechat.engine.engine import Engine
from ropechat.inspector.others.read import read_records
from ropechat.inspector.record_reader import NoEngine, RecordReader
from ropechat.tui.options import ChatOptions
from ropechat.tui.reader_app import ReaderApp
from ropechat.tui.screens.continuations import ContinuationsScreen
from ropechat.tui.screens.reader import ReaderScreen
from ropechat.tui.screens.why import WhyScreen

TEXT = "The cat sat on the mat.\n" + "Once upon a time there was a zzqx little girl.\n" * 30


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin")


@asynccontextmanager
async def reader(engine: Engine, text: str, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    app = ReaderApp(engine, "story.txt", text, None, ChatOptions())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.screen is app.reading and app.reading.is_mounted)  # keys go to it
        yield pilot
        app.thread.close(30)


async def until(pilot: Pilot[None], done: Callable[[], bool]) -> None:
    for _ in range(4000):  # a busy machine takes its time
        await pilot.pause(0.02)
        if done():
            return
    raise AssertionError(shown(pilot))


def app_of(pilot: Pilot[None]) -> ReaderApp:
    assert isinstance(pilot.app, ReaderApp)
    return pilot.app


def shown(pilot: Pilot[None]) -> str:
    """The text of the screen."""
    screen = app_of(pilot).reading
    lines = [
        "".join(segment.text for segment in screen.text_view.render_line(y))
        for y in range(screen.text_view.size.height)
    ]
    return "\n".join([screen._bar.text, *lines, screen.panel.text, str(screen._hints.render())])


@pytest.mark.slow
async def test_everything_is_scored_and_a_token_explained(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await until(pilot, lambda: screen.reader.is_done)
        await until(pilot, lambda: "% scored" not in shown(pilot) and "bits/token" in shown(pilot))
        assert "The cat sat on the mat." in shown(pilot)
        await pilot.press("right", "right")
        await until(pilot, lambda: "rank" in screen.panel.text)
        token = screen.reader.detail(screen.text_view.cursor)
        assert token is not None
        assert f"token #{token.index} of" in screen.panel.text  # as `i` in the records of inspect


@pytest.mark.parametrize(("size", "is_beside"), [((80, 24), False), ((160, 45), True)])
async def test_the_token_stands_below_or_beside_the_text(
    engine: Engine, size: tuple[int, int], is_beside: bool
) -> None:
    async with reader(engine, TEXT, size) as pilot:
        screen = app_of(pilot).reading
        await until(pilot, lambda: screen.panel.size.height > 0)
        text, panel = screen.text_view.region, screen.panel.region
        assert (panel.x >= text.right) is is_beside
        assert (panel.y >= text.bottom) is not is_beside
        assert screen.region.contains_region(panel)


@pytest.mark.slow
async def test_n_goes_to_the_next_surprise(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await pilot.press("n")
        await until(pilot, lambda: screen.text_view.cursor > 0)
        first = screen.text_view.cursor
        assert screen.reader.bits[first] >= 4.0
        await pilot.press("n")
        await until(pilot, lambda: screen.text_view.cursor > first)
        await pilot.press("N")
        await until(pilot, lambda: screen.text_view.cursor == first)


@pytest.mark.slow
async def test_any_string_is_looked_up(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await pilot.press("slash")
        assert "select a token first" in shown(pilot)
        await pilot.press("right", "right", "slash")
        await pilot.press("space", "d", "o", "g", "enter")
        await until(pilot, lambda: "' dog'" in screen.panel.text)
        assert re.search(r"' dog': \S+ \(\d+\.\d bits, rank \d+", screen.panel.text)


async def test_another_text_is_shown_at_the_same_place(engine: Engine) -> None:
    async with reader(engine, TEXT, (20, 24)) as pilot:
        view = app_of(pilot).reading.text_view
        await until(pilot, lambda: view.max_scroll_y > 40)
        view.scroll_to(y=40, animate=False)
        place = view.offset_of(40)
        view.show(view.reader)
        await pilot.pause()
        assert (view.scroll_offset.y, view.offset_of(40)) == (40, place)
        await pilot.resize_terminal(1, 1)
        assert view.scrollable_content_region.width == 0
        view.show(view.reader)
        assert not view._starts  # rows of no width would have no end
        assert (view.offset_of(40), view.row_of(place)) == (0, 0)
        await pilot.resize_terminal(20, 24)
        await until(pilot, lambda: view.max_scroll_y > 40)
        assert view.offset_of(40) == place


@pytest.mark.slow
async def test_another_text_in_the_place_of_a_token(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await until(pilot, lambda: screen.reader.is_done)
        await pilot.press("right", "right", "right")
        begin, end = screen.reader.span(screen.text_view.cursor)
        await pilot.press("f", *"XYZ", "enter")
        await until(pilot, lambda: "XYZ" in screen.reader.text)
        data = TEXT.encode()
        assert screen.reader.text == (data[:begin] + b"XYZ" + data[end:]).decode()
        await until(pilot, lambda: screen.reader.is_done)


@pytest.mark.slow
async def test_why_a_token_stands_there(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await pilot.press("a")
        assert "select a token first" in shown(pilot)
        await pilot.press(*["right"] * 5)
        at = screen.text_view.cursor
        await until(pilot, lambda: not math.isnan(screen.reader.bits[at]))
        await pilot.press("a")
        await until(pilot, lambda: isinstance(pilot.app.screen, WhyScreen))
        sheet = pilot.app.screen
        assert isinstance(sheet, WhyScreen)
        await until(pilot, lambda: sheet._examination.is_done)
        why = sheet._examination.why
        assert why is not None
        assert why.bits == pytest.approx(screen.reader.bits[at], rel=1e-6)  # float32 there
        assert {one.part.level for one in why.walk()} == {"word"}
        await pilot.press("escape")
        await until(pilot, lambda: screen.reader.is_done)  # which goes on


@pytest.mark.slow
async def test_a_path_of_the_tree_replaces_a_token(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await pilot.press("F")
        assert "select a token first" in shown(pilot)
        await pilot.press("right", "right", "right")
        index, old = screen.text_view.cursor, screen.reader
        begin, end = old.span(index)
        await pilot.press("F")
        await until(pilot, lambda: isinstance(pilot.app.screen, ContinuationsScreen))
        tree = pilot.app.screen
        await until(pilot, lambda: getattr(tree, "_tree", None) is not None)
        await pilot.press("right", "right", "enter")
        await until(pilot, lambda: screen.reader is not old)
        assert screen.reader.data[:begin] == old.data[:begin]
        assert screen.reader.data.endswith(old.data[end:])
        await until(pilot, lambda: screen.reader.is_done)


@pytest.mark.slow
async def test_how_the_model_would_go_on(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await pilot.press("right", "right", "g")
        await until(pilot, lambda: "greedy: …" in screen.panel.text)


@pytest.mark.slow
async def test_the_page(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with reader(engine, TEXT) as pilot:
        await pilot.press("x")
        page = tmp_path / "story.inspect.html"
        await until(pilot, lambda: "written:" in shown(pilot))
        assert "little" in page.read_text()
        await pilot.press("x")
        await until(pilot, lambda: "exists" in shown(pilot))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (160, 45), (40, 12)])
async def test_hostile_text_stays_text(engine: Engine, size: tuple[int, int]) -> None:
    text = "a\x1b[31mred\x07\t\u202eabc 猫猫猫猫 👩‍👩‍👧 \ue000 e\u0301\n" * 20 + "x" * 300
    async with reader(engine, text, size) as pilot:
        screen = app_of(pilot).reading
        await until(pilot, lambda: screen.reader.is_done)
        for key in ("end", "home", "pagedown", "right", "n", "t", "t", "t", "down", "up", "left"):
            await pilot.press(key)
        seen = shown(pilot)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", seen)
        width = screen.text_view.size.width
        for y in range(screen.text_view.size.height):
            assert screen.text_view.render_line(y).cell_length == width


@pytest.mark.slow
async def test_a_click_selects(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await until(pilot, lambda: screen.reader.is_done)
        await pilot.click("#text", offset=(6, 0))
        await until(pilot, lambda: screen.text_view.cursor > 0)
        begin, end = screen.reader.span(screen.text_view.cursor)
        assert begin <= 5 < end + 1


async def test_q_ends_it(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        await pilot.press("q")
        await until(pilot, lambda: app_of(pilot).outcome == 0)
        await asyncio.sleep(0)


async def test_a_job_that_ends_after_the_reader(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def job(engine: Engine) -> None:
        begun.set()
        may_end.wait(60)

    async with reader(engine, TEXT) as pilot:
        app, told = app_of(pilot), list[Any]()
        app.reading._submit(job, told.append)
        await until(pilot, begun.is_set)
        app.leave(0)
        await until(pilot, lambda: not app.is_running)
        may_end.set()
        assert app.thread.close(60)
    assert not told
    assert capfd.readouterr().err == ""


@pytest.mark.slow
async def test_a_second_model_beside_the_first(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropechat.inspector.compare import compare

    monkeypatch.chdir(tmp_path)
    other = Engine.load("builtin", dtype="q4_0", threads=1)
    app = ReaderApp(engine, "story.txt", TEXT, 100, ChatOptions(), lambda: other, "q4_0")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.reading
        await pilot.press("right", "right", "right", "c")
        await until(pilot, lambda: screen.comparison is not None and screen.comparison.is_done)
        await until(pilot, lambda: "KL" in screen.panel.text)
        assert "q4_0: mean KL" in shown(pilot)
        assert "tint: KL" in shown(pilot)
        assert screen.comparison is not None
        wanted = compare(engine, other, TEXT, window=100)
        bits = wanted.summary.mean_kld / math.log(2)
        assert screen.comparison.mean_kl == pytest.approx(bits, rel=1e-6)
        index = screen.text_view.cursor
        seen = screen.comparison.detail(index)
        assert seen is not None
        assert re.search(rf"q4_0 .* rank {seen.rank:,} ", screen.panel.text)
        await pilot.press("home", "n")
        await until(pilot, lambda: screen.text_view.cursor != index)
        assert screen.comparison.kl[screen.text_view.cursor] >= 0.1
        await pilot.press("x")
        await until(pilot, lambda: "written:" in shown(pilot))
        assert "KL divergence" in (tmp_path / "story.compare.html").read_text()
        await pilot.press("f", *"XYZ", "enter")
        await until(pilot, lambda: "XYZ" in screen.reader.text)
        await until(pilot, lambda: screen.comparison is not None and screen.comparison.is_done)
        assert screen.comparison.count == len(screen.reader) - 1
        await pilot.press("c")
        assert screen.comparison is None
        await until(pilot, lambda: "tint: surprisal" in shown(pilot) and "mean KL" not in shown(pilot))
        app.thread.close(30)


async def test_without_a_second_model_c_says_how(engine: Engine) -> None:
    async with reader(engine, TEXT, (160, 24)) as pilot:
        await pilot.press("c")
        await until(pilot, lambda: "--against-dtype" in shown(pilot))


@pytest.mark.slow
async def test_what_was_looked_up_is_shown_at_the_next_token_too(engine: Engine) -> None:
    async with reader(engine, TEXT) as pilot:
        screen = app_of(pilot).reading
        await pilot.press("right", "right", "slash", "space", "d", "o", "g", "enter")
        await until(pilot, lambda: "' dog'" in screen.panel.text)
        first = screen.panel.text
        await pilot.press("right")
        await until(pilot, lambda: "' dog'" in screen.panel.text and screen.panel.text != first)
        await pilot.press("slash")
        assert "' dog'" not in screen.panel.text
        assert not screen._ask.display
        await pilot.press("slash")
        assert screen._ask.display


async def test_a_file_over_the_chat(chat: Any, engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text(TEXT)
    async with chat(engine) as c:
        await c.idle()
        await c.ask(f"/inspect {tmp_path}/missing.txt")
        await c.until(lambda: "No such file" in c.line("footer"))
        await c.ask(f"/inspect {path}")
        await c.until(lambda: isinstance(c.app.screen, ReaderScreen))
        screen = c.app.screen
        await c.until(lambda: screen.reader.is_done)
        await c.pilot.press("right", "right")
        await c.until(lambda: "rank" in screen.panel.text)
        await c.pilot.press("q")
        await c.until(lambda: c.app.screen is not screen)
        assert c.app.composer.has_focus


async def test_a_record_is_read_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample = Path(__file__).parents[1] / "inspector/recorded/llama_cpp_python_chat.json"
    with sample.open("rb") as lines:
        record = RecordReader(read_records(lines, "a.json"))
    app = ReaderApp(cast("Engine", NoEngine()), "a.json", record, None, ChatOptions())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1.24 bits/token" in shown(pilot))
        assert "% scored" not in shown(pilot)
        await pilot.press("right", "right")
        await until(pilot, lambda: "raw 0.658  rank 1  0.6 bits  entropy –" in shown(pilot))
        assert "2  ad" in shown(pilot)
        await pilot.press("v")
        await until(pilot, lambda: "66%│" in app.reading.chart.text)
        assert "15%│" in app.reading.chart.text  # of the runner-up
        for keys in (["g"], ["slash", "x", "enter"], ["f", "x", "enter"]):
            await pilot.press(*keys)
            await until(pilot, lambda: "needs a model, which a record is not" in shown(pilot))
        await pilot.press("x")
        await until(pilot, lambda: "written:" in shown(pilot))
        assert "Étoile" not in (tmp_path / "a.inspect.html").read_text()  # each token has its span
        assert 'data-first="0"' in (tmp_path / "a.inspect.html").read_text()
        app.thread.close(30)
