"""Where typing goes: into the composer, unless something else visibly has the keys; and no draft is lost."""

from __future__ import annotations

from typing import Any

import pytest
from branches import answers, last
from fakes import STORY, FakeEngine
from textual import events

from ropechat.store.store import Store
from ropechat.tui.options import ChatOptions

pytestmark = pytest.mark.slow  # an app and an answer for each case
QUESTION = "continue please: here is why, xyz 123 /?"
WIDE = (160, 45)


async def told(c: Any, text: str = "Tell") -> None:
    """Ask, and wait until the answer ended by itself."""
    await c.ask(text)
    await c.idle()


def frame(c: Any) -> str:
    """What the bar above the composer says while reading."""
    return str(c.app.ui.reading_bar.text) if c.app.ui.reading_bar.display else ""


async def types(c: Any, before: str = "") -> None:
    """What is typed arrives in the composer, behind what stands there, and does nothing else."""
    tree, focused = len(c.app.session.tree), c.app.session.recorder.id
    await c.pilot.press(*QUESTION)
    await c.pilot.pause(0.05)
    assert c.app.composer.text == before + QUESTION
    assert (len(c.app.session.tree), c.app.session.recorder.id) == (tree, focused)
    assert not c.app.session.generating
    await c.until(lambda: "send" in c.line("footer"))  # once a message of the keys before it is gone
    assert frame(c) == ""


# --- what is typed arrives ---


@pytest.mark.parametrize(
    "keys",
    [
        ("tab",),
        ("shift+tab",),
        ("escape", "i"),
        ("escape", "enter"),
        ("escape", "tab"),
        ("escape", "pageup", "down", "home", "i"),
        ("escape", "escape"),
        ("ctrl+f", "escape"),
        ("escape", "left", "i"),
        ("escape", "left", "escape"),
        ("f4", "escape"),
        ("f4", "i"),
        ("f3", "escape", "i"),
        ("f1", "escape"),
        ("f5", "escape"),
        ("f6", "escape"),
        ("f7", "escape"),
        ("f9", "escape"),
        ("escape", "left", "f1", "escape"),
    ],
    ids=" ".join,
)
async def test_typing_arrives_with_its_draft(keys: tuple[str, ...], chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press(*"some text")
        await c.pilot.press(*keys)
        await types(c, "some text")


async def test_esc_that_was_to_stop_an_answer_that_just_ended_stays_in_the_composer(chat: Any) -> None:
    async with chat(FakeEngine([STORY, "ok"])) as c:
        await c.ask("Tell")
        await c.until(lambda: not c.app.session.generating)
        await c.pilot.press("escape")
        assert "the answer is complete; esc again reads it" in c.line("footer")
        await c.pilot.press(*QUESTION, "enter")
        await c.idle()
        assert last(c).question == QUESTION
        await c.pilot.press("escape")
        await c.until(lambda: "READING" in frame(c))


async def test_esc_has_nothing_to_read_in_an_empty_chat(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.pilot.press("escape")
        await types(c)


async def test_esc_that_stops_an_answer_stays_in_the_composer(chat: Any) -> None:
    async with chat(FakeEngine(STORY, rate=50)) as c:
        await c.ask("Tell")
        await c.until(lambda: bool(last(c).answer.node.steps))
        await c.pilot.press("escape")
        await c.idle()
        await types(c)


async def test_typing_arrives_in_a_new_chat(chat: Any, tmp_path: Any) -> None:
    store = Store(tmp_path / "data")
    async with chat(FakeEngine(STORY), store=store) as c:
        await told(c)
        await c.pilot.press(*"a draft ", "escape", "left", "ctrl+n")
        assert not c.app.session.turns
        await types(c, "a draft ")
    store.close()


async def test_typing_arrives_in_a_chat_that_was_opened(chat: Any, tmp_path: Any) -> None:
    store = Store(tmp_path / "data")
    async with chat(FakeEngine(["one", "two"]), store=store, size=WIDE) as c:
        await told(c, "First?")
        await c.pilot.press("ctrl+n")
        await told(c, "Second?")
        await c.pilot.press("escape", "left", "f2")
        await c.until(lambda: len(getattr(c.app.screen, "_found", ())) == 2)
        await c.pilot.press("down", "enter")
        await c.until(lambda: len(c.app.screen_stack) == 1 and last(c).question == "First?")
        await types(c)
        row = next(y for y, line in enumerate(c.screen().splitlines()) if "Second?" in line[:30])
        await c.pilot.press("escape", "left")
        await c.pilot.click(offset=(5, row))
        await c.until(lambda: last(c).question == "Second?")
        await types(c)  # the draft of the other chat stays there
        await c.pilot.press("f2")
        await c.until(lambda: len(getattr(c.app.screen, "_found", ())) == 2)
        await c.pilot.press("down", "enter")
        await c.until(lambda: last(c).question == "First?")
        await c.until(lambda: c.app.composer.text == QUESTION)
    store.close()


async def test_drafts_come_back_in_another_program(chat: Any, tmp_path: Any) -> None:
    """That of a new chat, that of a stored one, and what an edit was about to change."""
    long = "\n".join(f"line {number}" for number in range(30))
    for closes in (True, False):  # not closed: as after a crash, when only what was stored is there
        folder = tmp_path / str(closes)
        store = Store(folder)
        async with chat(FakeEngine(["one", "two"]), store=store) as c:
            await told(c, "First?")
            await c.pilot.press(*"more ")
            c.app.post_message(events.Paste(long))
            await c.until(lambda: "[pasted 30 lines]" in c.app.composer.text)
            await c.pilot.press("f2")
            await c.until(lambda: len(getattr(c.app.screen, "_found", ())) == 1)
            await c.pilot.press("escape")
            c.app.history.open_chat(c.app.session.recorder.id)
            await c.until(lambda: "[pasted 30 lines]" in c.app.composer.text)
            c.app.writing.edit(c.app.session.tree[last(c).asked])
            await c.pilot.press(*" again")
            if closes:
                c.app.leave(0)
            else:
                await c.pilot.pause(0.5)
        if closes:
            assert store.close()
        later = Store(folder)
        async with chat(FakeEngine(["one", "two"]), store=later, resume="") as c:
            await c.until(lambda: "more [pasted 30 lines]" in c.app.composer.text)
            assert c.app.composer.pastes.unfold(c.app.composer.text) == f"more {long}"
            await c.pilot.press("home", "up")
            assert c.app.composer.text == "First? again"
        later.close()


async def test_the_draft_of_a_new_chat_comes_back(chat: Any, tmp_path: Any) -> None:
    store = Store(tmp_path / "data")
    async with chat(FakeEngine(STORY), store=store) as c:
        await c.pilot.press(*"never sent")
        c.app.leave(0)
    assert store.close()
    other = Store(tmp_path / "data")
    async with chat(FakeEngine(STORY), store=other) as c:
        await c.until(lambda: c.app.composer.text == "never sent")
        later = Store(tmp_path / "data")
        assert later.draft("").result() == ""  # its program is running
        later.close()
        await c.pilot.press("enter")
        await c.idle()
        assert other.draft("").result() == ""
        assert other.draft(c.app.session.recorder.id).result() == ""
    other.close()


async def test_sampling_and_bans_come_back_with_the_chat(chat: Any, tmp_path: Any) -> None:
    store = Store(tmp_path / "data")
    async with chat(FakeEngine(STORY), store=store) as c:
        await told(c, "First?")
        await told(c, "/set temperature 0.1")
        await told(c, "/ban #5")
        await c.pilot.press("ctrl+n")
        await told(c, "/set temperature 1.5")
        await told(c, "Second?")
        first = next(one.id for one in store.conversations().result() if one.title == "First?")
        c.app.history.open_chat(first)
        await c.until(lambda: last(c).question == "First?")
        assert c.app.session.sampling.temperature == 0.1
        assert c.app.session.sampling.logit_bias == ((5, -100.0),)
        await c.pilot.press("ctrl+n")
        assert c.app.session.sampling.temperature == 0.7  # as at the start
    store.close()


async def test_letters_of_the_chat_do_nothing_in_the_sampling_beside_it(chat: Any) -> None:
    async with chat(FakeEngine(STORY), size=WIDE) as c:
        await told(c)
        await c.pilot.press("f7", *"continue")
        assert c.app.composer.text == "continue"
        assert len(answers(c)) == 1
        await c.pilot.press("f7", "2")
        assert "sampling precise" in c.line("title")


async def test_pastes_and_keys_in_one_burst_arrive_in_order(chat: Any) -> None:
    async with chat(FakeEngine(["one", "two"])) as c:
        await told(c)
        app = c.app
        await c.pilot.press("escape")
        for character in "What there":
            app.post_message(events.Key(character if character != " " else "space", character))
        app.post_message(events.Paste(" pasted"))
        app.post_message(events.Key("enter", "\r"))
        await c.until(lambda: len(c.app.session.turns) == 2)
        assert last(c).question == "What there pasted"
        await c.idle()
        await c.pilot.press("escape", "left")
        app.post_message(events.Paste("also while reading"))
        await c.until(lambda: app.composer.text == "also while reading")


# --- the reading mode ---


async def test_reading_is_framed_and_letters_act_in_it(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press("escape")
        await c.until(lambda: "READING" in frame(c))
        words = " ".join(frame(c).split())
        assert words == "READING e edit T tint / find v chart y copy r regenerate esc i write"
        assert c.line("footer").split()[:6] == ["↑", "↓", "scroll", "←", "→", "token"]
        await c.pilot.press("left")
        index = c.app.transcript.cursor.index
        await c.pilot.press("h")
        assert c.app.transcript.cursor.index == index - 1
        for count in (2, 3):
            await c.pilot.press("r")
            await c.idle()
            assert len(answers(c)) == count
            assert "[ ] version  = compare" in frame(c)
        await c.pilot.press("escape")
        assert frame(c) == ""
        assert c.app.transcript.cursor is None
        await c.until(lambda: "send" in c.line("footer"))


async def test_the_way_back_is_shown_with_chosen_keys(chat: Any) -> None:
    look = ChatOptions(keys={"chat.stop": ("f12",), "read.write": ("q",)})
    async with chat(FakeEngine(STORY), look=look) as c:
        await told(c)
        await c.pilot.press("f12", "left")
        assert "F12 q write" in frame(c)
        await c.pilot.press("q")
        await types(c)


async def test_letters_act_at_once_in_every_way_of_reading(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        ways = (["escape"], ["escape", "left"], ["click"], ["f4"])
        for count, way in enumerate(ways, 2):
            if way == ["click"]:
                await click_a_token(c)
            else:
                await c.pilot.press(*way)
            await c.pilot.press("r")
            await c.idle()
            assert len(answers(c)) == count
            assert "READING" in frame(c)
            await c.pilot.press("i")
            await types(c)
            c.app.composer.set_text("")


async def test_a_word_typed_while_reading_arrives_whole(chat: Any) -> None:
    """A letter without a command begins to write, with those that were commands just before it."""
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press(*"so: ", "escape")
        for character in "hlju":  # three moves, and a letter without a command
            c.app.post_message(events.Key(character, character))
        await c.until(lambda: frame(c) == "")
        await types(c, "so: hlju")
        await c.pilot.press("escape", "l")
        await c.pilot.pause(1.0)
        await c.pilot.press("u")
        assert c.app.composer.text == "so: hlju" + QUESTION + "u"  # the move was meant as one


async def test_clicks_on_the_bar_and_the_composer(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press("escape")
        bar = c.app.ui.reading_bar
        await c.pilot.click(bar, offset=(bar.text.index("regenerate"), 0))
        await c.until(lambda: len(answers(c)) == 2)
        await c.idle()
        await c.pilot.click(bar, offset=(bar.text.index("write"), 0))
        await types(c)
        await c.pilot.press("escape")
        await c.until(lambda: "READING" in frame(c))
        await c.pilot.click(c.app.composer)
        await types(c, QUESTION)


async def test_matches_are_walked_with_letters_under_the_frame(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press("ctrl+f", *"the", "enter")
        await c.until(lambda: "READING" in frame(c))
        before = c.app.transcript.finder.number
        await c.pilot.press("n")
        assert c.app.transcript.finder.number != before
        await c.pilot.press("escape")
        await types(c)


async def test_the_footer_tells_who_has_the_keys_after_the_window_was_left(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press("escape", "left")
        index = c.app.transcript.cursor.index
        c.app.post_message(events.AppBlur())
        await c.pilot.pause(0.05)
        c.app.ui.refresh()
        assert "send" not in c.line("footer")
        await c.pilot.press("left")
        assert c.app.transcript.cursor.index == index - 1
        c.app.post_message(events.AppBlur())
        c.app.post_message(events.Paste("pasted"))
        await c.until(lambda: c.app.composer.text == "pasted")


async def test_the_footer_while_reading_an_answer_that_is_written(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 3, rate=100)) as c:
        await c.ask("Tell")
        await c.until(lambda: len(last(c).answer.node.steps) > 20)
        await c.pilot.press("f4")
        assert c.line("footer").split()[:2] == ["esc", "stop"]
        assert "token" in c.line("footer")
        assert "newline" not in c.line("footer")


# --- a click on a token ---


async def click_a_token(c: Any) -> None:
    row = next(y for y, line in enumerate(c.screen().splitlines()) if "Once" in line)
    await c.pilot.click(offset=(4, row))
    await c.until(lambda: c.app.inspector.display)


async def test_after_a_click_arrows_and_digits_act(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await click_a_token(c)
        await c.pilot.press("right")
        assert c.app.transcript.cursor.index > 0
        await c.pilot.press("2")
        await c.idle()
        assert len(answers(c)) == 2
        assert "READING" in frame(c)
        await c.pilot.press("escape")
        await types(c)


async def test_a_click_reads_and_keeps_the_draft(chat: Any) -> None:
    async with chat(FakeEngine([STORY, "ok"])) as c:
        await told(c)
        await c.pilot.press(*"a draft ")
        await click_a_token(c)
        assert "READING" in frame(c)
        assert c.app.composer.text == "a draft "
        await c.pilot.press("i")
        await types(c, "a draft ")
        await c.pilot.press("enter")
        await c.idle()
        assert last(c).question == "a draft " + QUESTION


async def test_a_click_beside_all_tokens_leaves_the_keys_where_they_are(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await told(c)
        await c.pilot.click(offset=(60, 15))
        await types(c)


# --- no draft is lost ---


@pytest.mark.parametrize("edit", ["e", "E"])
async def test_an_edit_gives_the_draft_back(edit: str, chat: Any) -> None:
    async with chat(FakeEngine([STORY, "two", "three"])) as c:
        await told(c)
        await c.pilot.press(*"unsent", "escape", "left", edit)
        assert c.app.composer.text == (STORY if edit == "E" else "Tell")
        await c.pilot.press(*" changed", "escape")
        assert c.app.composer.text == "unsent"
        await c.pilot.press("up")
        assert c.app.composer.text.endswith(" changed")  # what was written in the edit is not lost either
        await c.pilot.press("down", "escape", "left", edit, "!", "enter")
        await c.idle()
        assert c.app.composer.text == "unsent"
        assert len(answers(c)) == 2


async def test_an_edit_of_an_edit_gives_the_draft_back(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press(*"unsent", "escape", "left", "e", *" one", "f4", "e", *" two", "escape")
        assert c.app.composer.text == "unsent"
        await c.pilot.press("up")
        assert c.app.composer.text == "Tell two"
        await c.pilot.press("up")
        assert c.app.composer.text == "Tell one"


async def test_a_new_chat_ends_an_edit(chat: Any, tmp_path: Any) -> None:
    store = Store(tmp_path / "data")
    async with chat(FakeEngine([STORY, "ok"]), store=store) as c:
        await told(c)
        await c.pilot.press(*"unsent", "escape", "left", "e", "ctrl+n")
        assert c.app.composer.text == "unsent"
        assert "editing" not in c.line("footer")
    store.close()


async def test_a_line_that_the_palette_begins_gives_the_draft_back(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await told(c)
        await c.pilot.press(*"unsent")
        found = {command.title: command.callback for command in c.app.get_system_commands(c.app.screen)}
        found["Rename"]()
        await c.pilot.press(*"A name", "enter")
        assert "A name" in c.line("title")
        assert c.app.composer.text == "unsent"
        found["Rename"]()
        await c.pilot.press("escape")
        assert c.app.composer.text == "unsent"


async def test_sending_an_older_text_keeps_the_draft(chat: Any) -> None:
    async with chat(FakeEngine(["one", "two", "three"])) as c:
        await told(c, "Older")
        await c.pilot.press(*"unsent", "up", "!", "enter")
        await c.idle()
        assert last(c).question == "Older!"
        await c.pilot.press("up", "up")
        assert c.app.composer.text == "unsent"


# --- ctrl+c ---


async def test_ctrl_c_clears_the_draft_then_quits(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await told(c)
        await c.pilot.press(*"unsent", "ctrl+c")
        assert c.app.composer.text == ""
        assert "cleared: ↑ brings it back" in c.line("footer")
        await c.pilot.press("up")
        assert c.app.composer.text == "unsent"
        await c.pilot.press("ctrl+c", "ctrl+c")
        assert c.app.is_running
        assert "ctrl+c again quits" in c.line("footer")
        await c.pilot.press("ctrl+c")
        await c.until(lambda: not c.app.is_running)


async def test_ctrl_c_stops_an_answer_and_leaves_the_draft(chat: Any) -> None:
    async with chat(FakeEngine(STORY, rate=50)) as c:
        await c.ask("Tell")
        await c.until(lambda: bool(last(c).answer.node.steps))
        await c.pilot.press(*"unsent", "ctrl+c")
        await c.idle()
        assert c.app.composer.text == "unsent"


@pytest.mark.parametrize("between", ["d", "left", "f3", "click", "paste"])
async def test_anything_between_disarms_ctrl_c(between: str, chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await told(c)
        await c.pilot.press("ctrl+c")
        assert "again quits" in c.line("footer")
        if between == "click":
            c.app.post_message(events.MouseDown(None, 60, 15, 0, 0, 1, False, False, False))
            await c.pilot.pause(0.05)
        elif between == "paste":
            c.app.post_message(events.Paste(""))
            await c.pilot.pause(0.05)
        else:
            await c.pilot.press(between)
        c.app.composer.set_text("")
        await c.pilot.press("ctrl+c")
        await c.pilot.pause(0.1)
        assert c.app.is_running
        assert "again quits" in c.line("footer")


async def test_ctrl_n_twice_is_disarmed_too(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        await told(c)
        await c.pilot.press("ctrl+n", "x", "ctrl+n")
        assert c.app.session.turns
        await c.pilot.press("ctrl+n")
        assert not c.app.session.turns
        assert c.app.composer.text == "x"


# --- text that Python does not count as printable ---


@pytest.mark.parametrize("text", ["👩\u200d👩\u200d👧", "می\u200cخواهم", "全\u3000角", "10\u00a0%"])
async def test_joiners_and_wide_spaces_are_typed(text: str, chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        for character in text:
            c.app.post_message(events.Key(f"u{ord(character):x}", character))
        await c.until(lambda: len(c.app.composer.text) == len(text))
        assert c.app.composer.text == text
        await c.pilot.press("ctrl+f")
        for character in text:
            c.app.post_message(events.Key(f"u{ord(character):x}", character))
        await c.until(lambda: len(c.app.find_bar.value) == len(text))
        assert c.app.find_bar.value == text


async def test_typed_controls_stay_out(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        c.app.post_message(events.Key("u202e", "\u202e"))
        c.app.post_message(events.Key("u9b", "\x9b"))
        await c.until(lambda: c.app.composer.text == "⟨202E⟩")
