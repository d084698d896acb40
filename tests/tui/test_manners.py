"""Keys that users chose, copying, the mouse, themes, and questions that come before the model."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from fakes import STORY, FakeEngine

from ropechat.tui.commands import registry as keys
from ropechat.tui.commands.keymap import Keymap, KeymapError
from ropechat.tui.format import theme
from ropechat.tui.options import ChatOptions
from ropechat.tui.screens.branches import BranchesScreen
from ropechat.tui.screens.chats import ChatsScreen
from ropechat.tui.screens.compare import CompareScreen
from ropechat.tui.screens.context import ContextScreen
from ropechat.tui.screens.continuations import ContinuationsScreen
from ropechat.tui.screens.dialog import Dialog
from ropechat.tui.screens.fork import ForkScreen
from ropechat.tui.screens.help import HelpScreen
from ropechat.tui.screens.models import ModelsScreen
from ropechat.tui.screens.personas import PersonasScreen
from ropechat.tui.screens.reader import ReaderScreen
from ropechat.tui.screens.rope import RopeScreen
from ropechat.tui.screens.settings import SettingsScreen
from ropechat.tui.screens.step import StepScreen
from ropechat.tui.screens.why import WhyScreen
from ropechat.tui.terminal.clipboard import MAX_BASE64, osc52_sequence
from ropechat.tui.widgets.sampling_panel import SamplingPanel

SHEETS = {
    "sheet": Dialog,
    "chats": ChatsScreen,
    "branches": BranchesScreen,
    "compare": CompareScreen,
    "alternatives": ForkScreen,
    "continuations": ContinuationsScreen,
    "models": ModelsScreen,
    "step": StepScreen,
    "dials": SamplingPanel,
    "personas": PersonasScreen,
    "full": ContextScreen,
    "settings": SettingsScreen,
    "help": HelpScreen,
    "reader": ReaderScreen,
    "rope": RopeScreen,
    "why": WhyScreen,
}


def look(**chosen: str) -> ChatOptions:
    return ChatOptions(keys={id.replace("__", "."): tuple(wanted.split()) for id, wanted in chosen.items()})


# --- keys ---


async def test_chosen_keys_do_and_are_shown(chat: Any) -> None:
    chosen = look(chat__stop="f12", app__help="f11", composer__newline="enter", composer__send="ctrl+s")
    async with chat(FakeEngine(STORY, rate=50), look=chosen, size=(100, 100)) as c:
        await c.pilot.press("a", "enter", "b", "ctrl+s")
        assert c.app.session.last.question == "a\nb"
        await c.until(lambda: bool(c.app.session.last.answer.node.steps))
        assert "F12 stop" in c.line("footer")
        await c.pilot.press("escape")
        assert c.app.session.generating
        await c.pilot.press("f12")
        await c.idle()
        assert c.app.session.last.answer.node.finish_reason == "cancelled"
        await c.pilot.press("f1")
        assert len(c.app.screen_stack) == 1
        await c.pilot.press("f11")
        assert len(c.app.screen_stack) == 2
        assert "^s " in c.screen()


async def test_chosen_keys_of_the_transcript(chat: Any) -> None:
    async with chat(FakeEngine(STORY), look=look(read__right="u", read__left="q shift+left")) as c:
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("escape", "enter", "f4", "u", "q")
        assert "shift+← u token  ↑ ↓ choice" in c.line("footer")
        first = c.app.transcript.cursor_token()
        await c.pilot.pause(1.0)
        await c.pilot.press("l")  # a letter like any other now
        assert c.app.composer.text == "l"
        await c.pilot.press("f4", "u")
        assert c.app.transcript.cursor_token()[1] == first[1] + 1
        await c.pilot.press("shift+left")
        assert c.app.transcript.cursor_token() == first


async def test_quit_and_palette_can_move(chat: Any) -> None:
    async with chat(FakeEngine(), look=look(app__quit="f12", app__palette="ctrl+k")) as c:
        await c.pilot.press("ctrl+q", "ctrl+p")
        assert c.app.is_running
        assert len(c.app.screen_stack) == 1
        await c.pilot.press("ctrl+k")
        assert len(c.app.screen_stack) == 2
        await c.pilot.press("escape", "f12")
        await c.until(lambda: not c.app.is_running)


@pytest.mark.parametrize(
    ("chosen", "command", "message"),
    [
        ({"chat.new": ("f10",), "chat.list": ("f10",)}, "chat.list", "F10 is also a key of chat.new"),
        (
            {"chat.new": ("escape",)},
            "chat.new",
            "esc is also a key of chat.stop; give one of them",
        ),
        ({"read.word": ("b",)}, "read.word", "b is also a key of read.back"),
        ({"chat.rename": ("f10",)}, "chat.rename", "unknown command"),
        ({"view.find": ("ctrl+m",)}, "view.find", "ctrl+m: terminals send the same code for enter"),
        ({"view.find": ("space",)}, "view.find", "space: types text"),
        ({"view.find": ("ctrl++x",)}, "view.find", "ctrl++x: unknown key"),
    ],
)
def test_keys_that_cannot_be(chosen: Any, command: str, message: str) -> None:
    with pytest.raises(KeymapError) as error:
        Keymap(chosen)
    assert error.value.command == command
    assert str(error.value).startswith(message)


def test_a_chosen_key_wins_over_a_default_one() -> None:
    """Also over one that became a default after it was chosen."""
    keymap = Keymap({"read.tint": ("t", "z"), "chat.new": ("ctrl+t",), "view.find": ("ctrl+o",)})
    assert keymap.keys("read.tint") == ("t", "z")
    assert (keymap.keys("answer.thought"), keymap.keys("answer.thoughts")) == ((), ())
    assert keymap.first("answer.thoughts", "model.first") == "/thoughts /get"
    assert keymap.keys("chats.undo") == ()
    assert "ctrl+t is chat.new, as your settings say: chats.undo has no key" in keymap.notes
    assert Keymap({"read.tint": ("t",)}).keys("answer.thought") == ("ctrl+t",)
    assert not Keymap({"read.tint": ("t",)}).notes


async def test_the_chat_starts_with_keys_that_became_defaults(chat: Any) -> None:
    async with chat(FakeEngine(STORY), look=look(read__tint="t z", view__find="ctrl+o")) as c:
        assert "ctrl+o is view.find, as your settings say: /get does model.first" in c.line("footer")
        await c.ask("Tell")
        await c.idle()
        await c.pilot.press("escape", "t")
        assert c.app.transcript.tint == "sampled"
        await c.pilot.press("z")
        assert c.app.transcript.tint == "entropy"
        await c.pilot.press("ctrl+o")
        assert c.app.find.active


def test_keys_may_be_swapped() -> None:
    keymap = Keymap({"chat.list": ("f5",), "chat.branches": ("F2".lower(),), "read.find": ("?",)})
    assert keymap.changes == {"chat.list": "f5", "chat.branches": "f2", "read.find": "question_mark"}


def test_what_is_shown_is_what_is_pressed() -> None:
    from ropechat.tui.commands.registry import shown

    for command in keys.ALL:
        if command.keys:
            first = shown(command.keys.split(",")[0])
            assert command.shown.split()[0] == first, command.id


def test_every_command_does_something() -> None:
    """The app's by its handler, others by an action of where their keys work."""
    from ropechat.chat.live import LiveChat
    from ropechat.sampling import Sampling
    from ropechat.tui.app import ChatApp
    from ropechat.tui.widgets.token_transcript import TokenTranscript

    handlers = set(ChatApp(LiveChat(FakeEngine, "fake", Sampling())).ui.handlers)
    bound = {re.findall(r"'(.*)'", command.action)[0] for command in keys.ALL if "app." in command.action}
    assert handlers == bound | {one.id for one in (*keys.COMMANDS, *keys.READING) if not one.action}
    for command in (*keys.READING, *keys.DIALOGS):
        place: Any = SHEETS.get(command.context, TokenTranscript)
        name = command.action.partition("(")[0]
        if name not in ("", "app.command"):
            assert hasattr(place, f"action_{name}"), command.id
    typed = [command.slash for command in keys.ALL if command.slash]
    assert len(set(typed)) == len(typed)


async def test_the_palette_acts_in_the_transcript_and_begins_lines(chat: Any) -> None:
    async with chat(FakeEngine(STORY)) as c:
        await c.ask("Tell")
        await c.idle()
        found = {command.title: command.callback for command in c.app.get_system_commands(c.app.screen)}
        found["Next token"]()
        await c.until(lambda: c.app.transcript.cursor is not None)
        found["Rename"]()
        assert c.app.composer.text == "/rename "
        found["Prose"]()
        await c.until(lambda: c.app.transcript.page.view == "prose")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
async def test_every_typed_command_is_known_and_harmless(part: int, chat: Any) -> None:
    typed = [f"/{one.slash}" for one in keys.ALL if one.slash and one.slash != "quit"]
    async with chat(FakeEngine(STORY)) as c:
        for line in typed[part::6]:
            if not c.app.session.turns:
                await c.ask("Tell")
                await c.idle()
            await c.ask(line)
            await c.pilot.pause(0.05)
            assert "unknown command" not in c.line("footer"), line
            assert c.app._exception is None, line
            await c.pilot.press("escape", "escape", "escape")
            await c.idle()


# --- copying and the mouse ---


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from textual.drivers.headless_driver import HeadlessDriver

    found: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda self, data: found.append(data))
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.delenv("STY", raising=False)
    return found


async def test_answers_and_code_are_copied(chat: Any, written: list[str]) -> None:
    text = "Do this:\n```python\nprint(1)\n```\nor \x1b[31m that"
    async with chat(FakeEngine(text)) as c:
        await c.ask("How?")
        await c.idle()
        await c.pilot.press("escape", "left", "y")
        copied = base64.b64encode(text.replace("\x1b", "␛").encode()).decode()
        assert f"\x1b]52;c;{copied}\a" in written
        assert "copied" in c.line("footer")
        await c.pilot.press("Y")
        assert f"\x1b]52;c;{base64.b64encode(b'print(1)').decode()}\a" in written
        del written[:]
        c.app.copy_to_clipboard("x" * MAX_BASE64)
        assert not [data for data in written if "]52" in data]
        assert "too many to copy" in c.line("footer")


def test_the_clipboard_through_tmux_and_screen() -> None:
    plain = "\x1b]52;c;aGk=\a"
    assert osc52_sequence("hi", {}) == plain
    assert osc52_sequence("hi", {"TMUX": "/tmp/x"}) == f"{plain}\x1bPtmux;\x1b\x1b]52;c;aGk=\a\x1b\\"
    wrapped = osc52_sequence("x" * 1000, {"STY": "1.pts"})
    assert wrapped is not None
    parts = wrapped.split("\x1b\\")
    assert all(part.startswith("\x1bP") for part in parts[:-1])
    assert "".join(part.removeprefix("\x1bP") for part in parts) == osc52_sequence("x" * 1000, {})


async def test_the_mouse_is_left_to_the_terminal_and_taken_back(chat: Any, written: list[str]) -> None:
    async with chat(FakeEngine()) as c:
        await c.pilot.press("f8")
        assert "\x1b[?1003l" in written[-1]
        assert "F8: back to the chat" in c.line("footer")
        await c.pilot.press("f8")
        assert "\x1b[?1003h" in written[-1]


# --- looks ---


@pytest.mark.parametrize(
    ("wanted", "environ", "name"),
    [
        ("auto", {"COLORTERM": "truecolor"}, "ropechat-dark"),
        ("auto", {"TERM": "xterm"}, "ropechat-ansi-dark"),
        ("light", {"TERM": "xterm"}, "ropechat-light"),
        ("light", {"NO_COLOR": "1"}, "ropechat-ansi-light"),
        ("dark", {"NO_COLOR": "", "COLORTERM": "truecolor"}, "ropechat-ansi-dark"),
        ("ansi-light", {"COLORTERM": "truecolor"}, "ropechat-ansi-light"),
    ],
)
def test_themes(wanted: str, environ: dict[str, str], name: str) -> None:
    assert theme.choose_theme(environ, wanted) == name


async def test_a_look_is_what_the_app_begins_with(chat: Any, written: list[str]) -> None:
    chosen = ChatOptions(theme="light", tint="rank", mouse=False, when_full="slide")
    async with chat(FakeEngine(), look=chosen) as c:
        assert c.app.theme == "ropechat-light"
        assert c.app.transcript.tint == "rank"
        assert c.app.session.when_full == "slide"
        assert any("\x1b[?1000l" in data for data in written)


async def test_the_cursor_of_a_field_shows_without_colours(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat(FakeEngine(STORY)) as c:
        await c.pilot.press("ctrl+f", "t", "h")
        await c.pilot.pause(0.1)
        y = c.app.find_bar.region.y
        cells = [(text, bool(style and style.reverse)) for text, style, _ in c.strips()[y]]
        assert (" ", True) in cells
        assert c.app.find_bar.value == "th"


async def test_the_mark_of_the_composer_comes_back_with_the_keyboard(chat: Any) -> None:
    async with chat(FakeEngine("ok")) as c:
        prompt = c.app.query_one("#prompt")
        bright = prompt.styles.color
        c.app.transcript.focus()
        await c.pilot.pause(0.1)
        assert prompt.styles.color != bright
        c.app.composer.focus()
        await c.pilot.pause(0.1)
        assert prompt.styles.color == bright


@pytest.mark.parametrize(("height", "offered"), [(12, 1), (24, 6), (40, 12)])
async def test_completions_say_how_many_more_there_are(chat: Any, height: int, offered: int) -> None:
    async with chat(FakeEngine("ok"), size=(80, height)) as c:
        await c.pilot.press("slash")
        await c.pilot.pause(0.1)
        shown = [line for line in c.screen().split("\n") if line.startswith("  /")]
        assert len(shown) == offered
        assert f"and {len([one for one in keys.ALL if one.slash]) - offered} more" in c.screen()


async def test_without_follow_the_view_stays_at_the_question(chat: Any) -> None:
    async with chat(FakeEngine(STORY * 20, context=10**5), look=ChatOptions(follow=False)) as c:
        await c.ask("Tell me")
        await c.idle()
        assert "Tell me" in c.screen()
        assert c.app.transcript.max_scroll_y > c.app.transcript.scroll_y


# --- before the model ---


def test_loading_is_the_first_request() -> None:
    from ropechat.chat.events import Load
    from ropechat.chat.live import LiveChat
    from ropechat.sampling import Sampling
    from ropechat.tui.app import ChatApp

    app = ChatApp(LiveChat(FakeEngine, "fake", Sampling()))
    assert isinstance(app.inference._requests.get(), Load)


async def test_words_of_the_screen_are_explained_in_the_help(chat: Any) -> None:
    meanings = {"surprisal": "-log2 of its probability", "ppl": "perplexity", "kv": "keeps of every token"}
    async with chat(FakeEngine("ok"), size=(160, 45)) as c:
        await c.pilot.press("f1")
        await c.until(lambda: "Words (type one): surprisal" in c.screen())
        for word, meaning in meanings.items():
            c.app.screen.query_one("#filter").value = word
            await c.until(lambda meaning=meaning: meaning in c.screen())
