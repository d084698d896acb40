"""Pictures of every screen of the chat, with SmolLM2: to be looked at, and for README and docs.

    python tests/support/shots.py                 recordings and pictures of README and docs, to docs/pictures
    python tests/support/shots.py --record FILE.svg [--theme light]         a recording alone
    python tests/support/shots.py --to FOLDER [--size 80x24 ...] [--only NAME ...]
                                 [--theme light] [--no-color]                every screen

The app runs headless, with chats, personas and a Hub cache of its own in a folder that is removed. The text
is that of SmolLM2 135M Instruct with fixed seeds (`ropechat models pull smollm2:135m` first; --model names
another); the models beside it in F6 have names and shapes of known ones, and no weights.
README and docs/chat.md name probabilities that the pictures show. They are those of `avx512-bf16`: elsewhere
`ROPECHAT_ISA=avx512-bf16 make shots` gives them, if the processor can.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from picture import svg  # noqa: E402
from recording import Recorder  # noqa: E402

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SIZES = ("60x20", "80x24", "100x26", "160x45")
KEPT = (
    *("fork-60x20", "weighed-60x20", "versions-60x20", "unsure-60x20"),  # of the README
    *("first-80x24", "tokens-80x24", "branches-80x24", "search-80x24", "models-80x24"),  # of docs/
    *("planet-100x26", "inspector-160x45", "sampling-160x45", "compare-four-160x45"),
)
RECORDED = "90x24"
WHY = "a: why this token? Each part of the context is left out in turn"
LIMIT = 180.0  # seconds until a screen must be there
PERSONAS = {
    "teacher": "You are a patient teacher. Explain step by step, with one example.",
    "terse coder": "Answer with code only.",
    "editor": "Correct spelling and grammar, change nothing else, and list what you changed.",
}
EARLIER = ("Write a haiku about the sea.", "What is the capital of Japan?", "Name five fruits.")
PLANET = "What is the largest planet in the solar system? Answer in one sentence."
CAPITAL, SIGHTS = "What is the capital of France?", "What should I see there in one day?"
STORY = "Write the first sentence of a novel about the sea."
CONTEXT = 110  # tokens, for the question that does not fit


class Stage:
    """A running chat, and where its pictures go."""

    def __init__(self, app: Any, pilot: Any, folder: Path, wanted: set[str]) -> None:
        self.app, self.pilot = app, pilot
        self._folder, self._wanted = folder, wanted

    async def press(self, *keys: str) -> None:
        """Keys by Textual's names."""
        await self.pilot.press(*keys)
        await self.pilot.pause(0.1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, then for the screen."""
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("the screen that was waited for did not come")
            await asyncio.sleep(0.02)
        await self.pilot.pause(0.2)

    async def idle(self) -> None:
        """Wait until the model rests."""
        await self.until(lambda: not self.app.session.generating and not self.app.inference.busy)

    async def write(self, text: str) -> None:
        """Put a text into the composer, which has the focus then."""
        self.app.composer.focus()
        self.app.composer.set_text(text)
        await self.pilot.pause(0.4)

    async def say(self, text: str) -> None:
        """Send a question or a command, and wait for what comes of it."""
        await self.write(text)
        await self.press("enter")
        await self.idle()

    async def take(self, name: str) -> None:
        """A picture of the screen as it is."""
        width, height = self.app.size
        whole = f"{name}-{width}x{height}"
        if not self._wanted or name in self._wanted or whole in self._wanted:
            self.app.ui.disarm()  # hints of what was done on the way
            await self.pilot.pause(0.2)
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{whole}.svg").write_text(svg(self.app), encoding="utf-8")


# --- scenes: each begins and ends in the chat ---


async def first(stage: Stage) -> None:
    """What a new user sees."""
    await stage.take("first")
    await stage.write("/")
    await stage.take("completion")
    await stage.write("")


async def earlier(stage: Stage) -> None:
    """Chats to be listed."""
    for question in EARLIER:
        await stage.say(question)
        await stage.press("ctrl+n")


async def planet(stage: Stage) -> None:
    """A wrong answer: where the model was unsure, what else it could have said, and how that goes on."""
    await stage.say(PLANET)
    await surprise(stage, word=" Neptune")
    await stage.press("enter", "j", "p")
    await stage.idle()
    await stage.take("planet")
    await stage.press("2")
    await stage.idle()
    await stage.take("fork")
    await stage.press("equals_sign")
    await stage.take("weighed")
    await stage.press("escape")
    await stage.press("f5")
    await stage.take("versions")
    await stage.press("escape", "escape", "escape")
    await surprise(stage)
    await stage.press("v")
    await stage.take("unsure")
    await stage.press("v", "escape")
    await stage.press("ctrl+n")


async def reading(stage: Stage) -> None:
    """The transcript in both views, find, and what is under a token."""
    for question in (CAPITAL, SIGHTS, STORY):
        await stage.say(question)
    await stage.take("tokens")
    await stage.press("f3")
    await stage.take("prose")
    await stage.press("f3")
    await stage.press("escape")
    await stage.take("transcript")
    await stage.press("ctrl+f", *"the")
    await stage.take("find")
    await stage.press("escape")
    await surprise(stage)
    await stage.press("enter")
    await stage.press("k")
    await stage.press("p")
    await stage.idle()
    await stage.take("inspector")


async def surprise(stage: Stage, answer: int = -1, word: str = "") -> None:
    """Put the cursor on a surprising token that had rivals, of one of the answers; or on that of a word."""
    from ropechat.tui.render.cursor import TokenPlace

    block = [block for block in stage.app.transcript.blocks if getattr(block, "steps", ())][answer]
    likely = [at for at in range(3, len(block.steps) - 4) if 2 <= block.steps[at].rank <= 4]
    likely = [at for at, step in enumerate(block.steps) if word and step.text == word] or likely
    index = min(likely or range(len(block.steps)), key=lambda at: block.steps[at].logprob)
    stage.app.transcript.focus()
    stage.app.transcript.move_to(TokenPlace(block, index))
    stage.app.transcript.commands = True
    await stage.pilot.pause(0.2)


async def causes(stage: Stage) -> None:
    """Why a token, and what could follow there."""
    from ropechat.tui.screens.why import WhyScreen

    await stage.press("a")
    await stage.until(lambda: isinstance(stage.app.screen, WhyScreen))
    await stage.until(lambda: stage.app.screen._examination.is_done)
    await stage.press("enter")
    await stage.take("why")
    while isinstance(stage.app.screen, WhyScreen):
        await stage.press("escape")
    await stage.press("F")
    await stage.until(lambda: getattr(stage.app.screen, "_tree", None) is not None)
    await stage.press("right")
    await stage.take("continuations")
    await stage.press("escape")


async def branches(stage: Stage) -> None:
    """Fork at a less likely alternative, regenerate, and see both."""
    await stage.press("9")
    await stage.idle()
    await stage.take("forked")
    await stage.press("escape")
    await stage.press("escape")
    await stage.say("/regen")
    await stage.say(SIGHTS)
    await stage.press("f5")
    await stage.take("branches")
    tree = stage.app.session.tree
    forks = [node for node in tree.nodes.values() if node.origin is not None and node.origin.kind == "fork"]
    options = stage.app.screen.query_one("#nodes")
    options.highlighted = options.get_option_index(forks[-1].id)
    await stage.press("equals_sign")
    await stage.take("compare")
    await stage.press("escape")
    await stage.press("escape")
    await stage.press("ctrl+n")
    await stage.say(STORY)
    await stage.write("/regen 4")
    await stage.press("enter")
    await stage.until(lambda: len(stage.app.screen_stack) > 1)
    await stage.take("compare-four")
    await stage.press("escape")
    await stage.take("chat")


async def sheets(stage: Stage) -> None:
    """What opens over the chat."""
    await stage.press("f2")
    await stage.take("chats")
    await stage.press(*"sea")
    await stage.pilot.pause(0.3)
    await stage.take("search")
    await stage.press("escape")
    await stage.press("f6")
    await stage.until(lambda: stage.app.screen._read)
    await stage.press(*["down"] * 4)  # to the first one to download: it has no path
    await stage.take("models")
    await stage.press("escape")
    await dials(stage)
    await stage.write("/persona")
    await stage.press("enter")
    await stage.take("personas")
    await stage.press("escape")
    await stage.say("/ban my wizard")  # of two words: never one token
    await stage.until(lambda: len(stage.app.screen_stack) > 1)
    await stage.take("ban")
    await stage.press("escape")
    await stage.say("/settings")
    await stage.until(lambda: len(stage.app.screen_stack) > 1)
    await stage.take("settings")
    await stage.press("escape")
    await stage.say("/rope")
    await stage.until(lambda: len(stage.app.screen_stack) > 1)
    await stage.take("positions")
    await stage.press("escape")
    for key, name in (("f9", "facts"), ("f1", "help"), ("ctrl+p", "palette")):
        await stage.press(key)
        await stage.take(name)
        await stage.press(key if name == "facts" else "escape")


async def dials(stage: Stage) -> None:
    """The sampling, tried on a token of the story; beside the facts where there is room."""
    await surprise(stage, -1)
    await stage.press("f9")
    if stage.app.size.width >= 120:
        await stage.press("f7")
    else:
        await stage.press("escape", "f7")
    await stage.press("down", "down")
    await stage.take("sampling")
    await stage.press("escape")
    if stage.app.size.width >= 120:
        await stage.press("f9")
    stage.app.transcript.move_to(None)


async def writing(stage: Stage) -> None:
    """A draft of several lines, with a file; an edit; the alternatives of a token; a text in the reader."""
    Path("notes.md").write_text("Tokens are pieces of text.\n" * 9)
    await stage.write("Say this in one sentence:\n@notes.md\nand name the file.")
    await stage.take("draft")
    await stage.write("")
    await stage.press("escape", "left")
    await stage.press("e")
    await stage.take("edit")
    await stage.press("escape")
    await surprise(stage)
    await stage.press("f")
    await stage.take("alternatives")
    await stage.press("escape", "escape")
    await stage.say("/inspect notes.md")
    await stage.until(lambda: len(stage.app.screen_stack) > 1)
    await stage.pilot.pause(2.0)
    await stage.press("n")
    await stage.take("reader")
    await stage.press("escape")


async def charts(stage: Stage) -> None:
    """The chart of an answer, and of two versions of it."""
    await stage.say(STORY)
    await surprise(stage)
    await stage.press("v")
    await stage.take("chart")
    await stage.press("r")
    await stage.idle()
    await surprise(stage)
    await stage.press("V")
    await stage.take("chart-two")
    await stage.press("v", "escape", "escape")


async def stepping(stage: Stage) -> None:
    """Step mode: candidates, a search."""
    await stage.write(f"/step {CAPITAL}")
    await stage.press("enter")
    await stage.until(lambda: len(stage.app.screen_stack) > 1 and bool(stage.app.screen.view.next_tokens))
    view = stage.app.screen.view
    for _ in range(3):
        before = len(view.steps)
        await stage.press("1")
        await stage.until(lambda before=before: len(view.steps) > before and bool(view.next_tokens))
    await stage.take("step")
    await stage.press(*"fra")
    await stage.until(lambda: view.found is not None)
    await stage.idle()
    await stage.take("step-find")
    await stage.press("escape", "escape")


async def full(stage: Stage) -> None:
    """A question that does not fit."""
    questions = itertools.cycle((CAPITAL, SIGHTS, STORY))
    while len(stage.app.screen_stack) == 1:
        await stage.write(next(questions))
        await stage.press("enter")
        await stage.until(lambda: len(stage.app.screen_stack) > 1 or not stage.app.session.generating)
    await stage.take("full")


# --- the recording ---


class Reel:
    """What is done in the chat while it is recorded."""

    def __init__(self, stage: Stage, recorder: Recorder) -> None:
        self._stage, self._recorder = stage, recorder

    async def hold(self, seconds: float, caption: str, *, still: bool = False) -> None:
        """The screen as it is, for a time."""
        self._recorder.caption = caption
        self._stage.app.ui.disarm()
        await self._stage.pilot.pause(0.2)
        self._recorder.keep(self._stage.app, seconds, still=still)

    async def type(self, text: str) -> None:
        """A question, letter by letter."""
        self._stage.app.composer.focus()
        for end in range(1, len(text) + 1, 2):
            self._stage.app.composer.set_text(text[: end + 1])
            await self._stage.pilot.pause(0.02)
            self._recorder.keep(self._stage.app, 0.07)

    async def answer(self, key: str, caption: str) -> None:
        """A key that makes the model write; each screen meanwhile."""
        self._recorder.caption = caption
        app = self._stage.app
        await self._stage.pilot.press(key)
        while app.session.generating or app.inference.busy:
            self._recorder.keep(app, 0.05)
            await self._stage.pilot.pause(0.03)
        await self._stage.idle()


async def story(stage: Stage, recorder: Recorder) -> None:
    """First start, a question, opening a token, forking, comparing, why this token."""
    from ropechat.tui.screens.why import WhyScreen

    reel = Reel(stage, recorder)
    await reel.hold(1.5, "ropechat: a model on your own CPU")
    await reel.type(PLANET)
    await reel.answer("enter", "Enter asks; words in colour surprised the model")
    await reel.hold(2.5, "It says Neptune. Was it sure?")
    await surprise(stage, word=" Neptune")
    await reel.hold(1.5, "Esc and the arrow keys go to a token")
    await stage.press("enter")
    await reel.hold(2.5, "Enter opens it: Jupiter was the second choice", still=True)
    await stage.press("j", "p")
    await stage.idle()
    await reel.hold(2.5, "p: how would it have gone on?")
    await reel.answer("2", "2: answer again from there; the rest is cached")
    await reel.hold(2.0, "2: answer again from there; the rest is cached")
    await stage.press("equals_sign")
    await reel.hold(3.5, "= puts both answers side by side, with the bits that each token costs")
    await stage.press("escape")
    await stage.press("escape", "escape", "escape")
    await surprise(stage, word=" Jupiter")
    recorder.caption = WHY
    await stage.pilot.press("a")
    await stage.until(lambda: isinstance(stage.app.screen, WhyScreen))
    await stage.until(lambda: stage.app.screen._examination.is_done)
    await reel.hold(4.0, WHY)
    while isinstance(stage.app.screen, WhyScreen):
        await stage.press("escape")
    await stage.press("f5")
    await reel.hold(3.0, "F5: a chat is a tree, and every version is kept")


async def record(file: Path, home: Path, model: str) -> None:
    """Write the recording."""
    recorder = Recorder()

    async def scene(stage: Stage) -> None:
        await story(stage, recorder)

    await play([scene], RECORDED, file.parent, set(), home, model)
    file.write_text(recorder.svg(), encoding="utf-8")
    print(f"{file.name}: {recorder.seconds:.0f} s, {file.stat().st_size / 1000:.0f} kB")


# --- around them ---


def stand_in(folder: Path, name: str, shape: str) -> None:
    """A model in the Hub's cache that has every byte and no weights: a sparse file behind a true header."""
    from ropechat.engine.bench.shapes import config_of, tensors_of

    home = folder / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    config = config_of(shape)
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "tokenizer.json").write_text("{}")
    (snapshot / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    entries, end = {}, 0
    for tensor, dims, _ in tensors_of(config):
        size = 2
        for dim in dims:
            size *= dim
        entries[tensor] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with (snapshot / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)


def keep_model(model: str, home: Path) -> str:
    """Copy a model of the catalog to where the Hub's cache will be; the name of any other model stays."""
    from ropechat.models.catalog import find_short
    from ropechat.models.resolve import resolve

    known, path = find_short(model), resolve(model)
    if known is None:
        return str(path)
    folder = home / "hf" / "hub" / f"models--{known.repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(path, snapshot / known.file)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    return model


def furnish(home: Path) -> None:
    """An environment of our own: colours, no settings, personas, models."""
    for name in [
        name
        for name in os.environ
        if name.startswith(("ROPECHAT_", "HF_", "XDG_", "OLLAMA_", "LLAMA_", "NO_COLOR", "SSH_"))
        and name != "ROPECHAT_ISA"
    ]:
        del os.environ[name]
    os.chdir(home)
    os.environ |= {"HOME": str(home), "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    os.environ |= {"HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1"}
    from ropechat.chat import personas

    for name, text in PERSONAS.items():
        personas.save(name, text)
    stand_in(home / "hf", "Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b")
    stand_in(home / "hf", "meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b")


async def play(
    scenes: list[Callable[[Stage], Awaitable[None]]],
    size: str,
    folder: Path,
    wanted: set[str],
    home: Path,
    model: str,
    **load: Any,
) -> None:
    """Run scenes in one chat of one size."""
    from ropechat import Engine, Sampling
    from ropechat.chat.live import LiveChat
    from ropechat.settings.file import SettingsFile
    from ropechat.store.store import Store
    from ropechat.tui.app import ChatApp
    from ropechat.tui.options import ChatOptions

    width, height = map(int, size.split("x"))
    store = Store(home / f"chats-{size}-{len(load)}")
    sampling = Sampling(temperature=0.6, seed=7, max_tokens=200)
    app = ChatApp(
        LiveChat(lambda: Engine.load(model, **load), model, sampling, None, store),
        options=ChatOptions(settings=SettingsFile({})),
    )
    async with app.run_test(size=(width, height)) as pilot:
        stage = Stage(app, pilot, folder, wanted)
        await stage.until(lambda: app.session.info is not None)
        await stage.idle()
        for scene in scenes:
            await scene(stage)
    app.inference.shutdown(2.0)
    store.close()


def main() -> int:
    """Parse, take the pictures, return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path)
    parser.add_argument("--size", nargs="*", default=SIZES)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--theme", help="light, ansi-dark, ansi-light (16 colours of the terminal), ...")
    parser.add_argument("--no-color", action="store_true", help="as under NO_COLOR")
    parser.add_argument("--record", type=Path, metavar="FILE.svg", help="only the recording, to this file")
    args = parser.parse_args()
    recording = args.record and args.record.absolute()  # the folder changes
    wanted = set(args.only) if args.to else set(KEPT)
    environ = dict(os.environ)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        model = keep_model(args.model, home)
        furnish(home)
        os.environ |= {"NO_COLOR": "1"} if args.no_color else {}
        os.environ |= {"TEXTUAL_THEME": f"ropechat-{args.theme}"} if args.theme else {}
        if recording is not None:
            asyncio.run(record(recording, home, model))
            return 0
        if args.to is None:
            for theme in ("dark", "light"):  # each in a process of its own: Textual reads its theme once
                file = FOLDER / f"recording-{theme}.svg"
                words = [__file__, "--model", args.model, "--theme", theme, "--record", str(file)]
                subprocess.run([sys.executable, *words], check=True, env=environ)
        for size in args.size:
            to = args.to or FOLDER
            scenes = [first, planet, earlier, reading, causes, branches, charts, stepping, sheets, writing]
            asyncio.run(play(scenes, size, to, wanted, home, model))
            asyncio.run(play([full], size, to, wanted, home, model, context=CONTEXT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
