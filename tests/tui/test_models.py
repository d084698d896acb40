"""The models sheet: what is here, another model in the same chat, downloads from a stand-in Hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine
from hub_server import Hub, Repo, serve, use
from model_folders import byte_tokenizer
from model_sheet import Models, opened
from models import write_llama
from reading import feed, inspected
from textual.widgets import Input

from ropechat.chat.download import Stage
from ropechat.chat.export import Spelling
from ropechat.models.catalog import find_short
from ropechat.models.installed import ModelSummary
from ropechat.models.resolve import resolve
from ropechat.store.store import Store
from ropechat.tui.format import models as rows
from ropechat.tui.options import ChatOptions
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.screens.models import ModelsScreen

GOLDEN = Path(__file__).parents[1] / "golden" / "gguf" / "llama3"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as hub:
        use(hub, tmp_path, monkeypatch)
        yield hub


def model_files(folder: Path, padding: int = 0) -> dict[str, bytes]:
    """A tiny model that the headers' reader takes."""
    made = write_llama(folder)
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    return files | {"tokenizer.json": json.dumps(byte_tokenizer()).encode()}


def stage(c: Any) -> Stage | None:
    """Of the chat's download; None for none."""
    download = c.app.chat.downloads.current
    return None if download is None else download.stage


@pytest.mark.slow
async def test_another_model_goes_on_with_the_chat(chat: Any, hub: Hub) -> None:
    models, engine = Models(), FakeEngine("First one.")
    async with chat(engine, models=models) as c:
        await c.ask("Hi?")
        await c.idle()
        models.gate.clear()
        await c.ask("/model some/other")
        await c.until(lambda: "loading" in c.line("title"))
        assert "some/other" in c.line("title")
        assert engine.closed  # before the new one takes memory
        await c.ask("And?")  # asked while it is loaded
        models.gate.set()
        await c.until(lambda: c.app.session.info.name == "other")
        await c.idle()
        assert [m.content for m in models.loaded[0].asked[0]] == ["Hi?", "First one.", "And?"]
        assert "I am other." in c.screen()
        assert "fake-1m" in c.screen()  # who wrote the first answer
        assert "other·f32" in c.line("title")


async def test_a_model_with_bad_headers_leaves_the_old_one(chat: Any, hub: Hub) -> None:
    engine = FakeEngine("Still here.")
    async with chat(engine, models=Models()) as c:
        await c.ask("/model bad/one")
        await c.until(lambda: "Not loaded: bad/one: no header" in c.screen())
        assert "fake-1m stays loaded" in c.screen()
        assert not engine.closed
        await c.ask("Hi?")
        await c.idle()
        assert "Still here." in c.screen()
        await c.pilot.press("ctrl+q")
        await c.until(lambda: not c.app.is_running)
        assert c.app.outcome == 0


async def test_a_model_that_does_not_fit_can_be_replaced_by_another(chat: Any, hub: Hub) -> None:
    async with chat(FakeEngine("ok"), models=Models()) as c:
        await c.ask("Hi?")
        await c.idle()
        await c.ask("/model big/one")
        await c.until(lambda: "does not fit" in c.screen())
        assert "F6 chooses another one" in c.screen()
        assert "not loaded" in c.line("title")
        assert len(c.app.session.turns) == 1
        await c.ask("/model small")
        await c.until(lambda: "small" in c.line("title") and c.app.session.info is not None)
        await c.ask("And?")
        await c.idle()
        assert "I am small." in c.screen()


async def test_a_model_is_not_changed_under_an_answer(chat: Any, hub: Hub) -> None:
    models, engine = Models(), FakeEngine("word " * 200, rate=100, context=10**4)
    async with chat(engine, models=models) as c:
        await c.ask("Hi?")
        await c.until(lambda: len(c.app.session.last.answer.node.steps) > 3)
        c.app.models.switch_model("other")
        await c.until(lambda: c.app.session.info.name == "other")
        assert c.app.session.last.answer.node.state == "stopped"
        assert c.app.session.last.answer.node.text.startswith("word word")


@pytest.mark.slow
async def test_a_token_of_another_model_is_not_gone_on_from(chat: Any, hub: Hub) -> None:
    models = Models()
    async with chat(FakeEngine("a b c"), models=models) as c:
        await c.ask("Hi?")
        await c.idle()
        models.gate.clear()
        await c.ask("/model other")
        c.app.ui.run("answer.resume")
        assert "another model is being loaded" in c.line("footer")
        models.gate.set()
        await c.until(lambda: c.app.session.info.name == "other")
        c.app.ui.run("answer.resume")
        assert "only that model can continue it" in c.line("footer")


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [True, False])
async def test_an_answer_keeps_the_vocabulary_of_its_model(
    chat: Any, hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch, tokenizer: bool
) -> None:
    """In the same program, and in the next one, which reads the tokenizer, if the model is here."""
    monkeypatch.setattr(FakeEngine, "token_bytes", lambda self, id: f" {self.name}-{id}".encode())
    models = Models()
    async with chat(FakeEngine("a b c"), models=models, store=store, size=(100, 40)) as c:
        inspector = await inspected(c)
        assert "fake-1m-9" in inspector.text
        block, id = c.app.transcript.blocks[-1], c.app.session.recorder.id
        await c.ask("/model other")
        await c.until(lambda: c.app.session.info.name == "other")
        await reads_old_answer(c)
        assert "fake-1m-9" in inspector.text
        assert "other-" not in inspector.text
        for command in ("alternative.ban", "alternative.more", "alternative.less"):
            c.app.ui.run(command)
            assert "written by fake-1m: only that model has these tokens" in c.line("footer")
        c.app.ui.run("read.preview")
        assert "only that model can continue it" in c.line("footer")
        assert c.app.session.sampling.logit_bias == ()
        await c.pilot.press("f7")
        await c.until(lambda: "tokens possible" in c.screen())
        assert "fake-1m-9" in c.screen()
        assert "other-" not in c.screen()
        recorded = list(block.answer.steps)

    class Words:
        present = True

        def token_bytes(self, id: int) -> bytes:
            return f" read-{id}".encode()

    monkeypatch.setattr(Spelling, "_load", lambda self, model: Words() if tokenizer else None)
    async with chat(FakeEngine("x", name="third"), store=store, resume=id, size=(100, 40)) as c:
        await c.until(lambda: bool(c.app.session.turns))
        feed(c.app.transcript, newest_answer(c), recorded[-1:])
        await reads_old_answer(c)
        wanted = "read-9" if tokenizer else "#9"
        await c.until(lambda: wanted in c.app.inspector.text)
        assert "third" not in c.app.inspector.text


def newest_answer(c: Any) -> AnswerBlock:
    return [block for block in c.app.transcript.blocks if isinstance(block, AnswerBlock)][-1]


async def reads_old_answer(c: Any) -> None:
    """A click on the last token of the newest answer."""
    view, block = c.app.transcript, newest_answer(c)
    view.move_to(TokenPlace(block, len(block.steps) - 1), clicked=True)
    await c.until(lambda: "dangle" in c.app.inspector.text)


@pytest.mark.slow
async def test_the_list_says_what_the_headers_say(chat: Any, hub: Hub, tmp_path: Path) -> None:
    from ropechat.models.download import pull

    hub.repos["org/tiny"] = Repo(model_files(tmp_path / "made"))
    pull("org/tiny")
    folder = tmp_path / "hf/hub/models--org--cut/snapshots/x"
    folder.mkdir(parents=True)
    models = Models()
    async with chat(FakeEngine("ok"), size=(100, 30), models=models) as c:
        await opened(c)
        assert "of memory free" in c.screen()
        assert "org/tiny" in c.screen()
        assert "≈" in c.screen()
        assert "no chat template" in c.screen()
        await c.pilot.press(*"nothing")
        await c.until(lambda: "not found here" in c.screen())
        await c.pilot.press(*["backspace"] * 7, *"tiny", "enter")
        await c.until(lambda: len(models.loaded) == 1)
        await c.idle()
        screen = await opened(c)
        assert "● org/tiny" in c.screen()  # the one that is loaded
        assert screen._path is not None
        await c.pilot.press("f6")
        await c.until(lambda: not isinstance(c.app.screen, ModelsScreen))


@pytest.mark.slow
async def test_a_download_is_deleted_at_the_second_press(chat: Any, hub: Hub, tmp_path: Path) -> None:
    from ropechat.models.download import pull

    for name in ("org/one", "org/two"):
        hub.repos[name] = Repo(model_files(tmp_path / name))
        pull(name)
    models = Models()
    async with chat(FakeEngine("ok"), size=(100, 30), models=models) as c:
        await c.ask("/model org/two")
        await c.until(lambda: len(models.loaded) == 1)
        await c.idle()
        screen = await opened(c)
        await c.pilot.press("ctrl+d")
        assert "this model is in use" in c.screen()
        await c.pilot.press("up", "ctrl+d")
        assert "again deletes org/one, " in c.screen()
        assert (tmp_path / "hf/hub/models--org--one").is_dir()
        await c.pilot.press("down", "up", "ctrl+d")  # moving away takes it back
        assert (tmp_path / "hf/hub/models--org--one").is_dir()
        await c.pilot.press("ctrl+d")
        await c.until(lambda: "deleted: org/one, " in c.screen())
        assert not (tmp_path / "hf/hub/models--org--one").exists()
        await c.until(lambda: all(getattr(row, "name", "") != "org/one" for row in screen._shown))
        await c.pilot.press(*"builtin", "ctrl+d")
        assert "only downloaded models" in c.screen()


async def test_a_path_can_be_typed(chat: Any, hub: Hub) -> None:
    models = Models()
    async with chat(FakeEngine("ok"), models=models) as c:
        await opened(c)
        await c.pilot.press(*"/no/where", "enter")
        await c.until(lambda: c.app.session.info.name == "where")


@pytest.mark.slow
async def test_download_plan_pause_go_on_and_load(chat: Any, hub: Hub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = Repo(model_files(tmp_path / "made") | {"model-x.txt": b""})
    hub.repos["org/tiny"].files["model.safetensors"] += b""
    models = Models()
    async with chat(FakeEngine("ok"), size=(100, 36), models=models) as c:
        await opened(c)
        await c.pilot.press(*"org/tiny")
        await c.until(lambda: "download org/tiny" in c.screen())
        assert not hub.requests  # nothing is asked before it is wanted
        await c.pilot.press("enter")
        await c.until(lambda: stage(c) is Stage.PLANNED)
        await c.until(lambda: "⏎ downloads" in c.screen())
        assert "fit in memory" in c.screen()
        gate = threading.Event()

        def held(file: str, start: int, rest: bytes) -> bytes:
            if file.endswith(".safetensors") and not gate.is_set():
                return rest[: len(rest) // 2]
            return rest

        hub.body = held
        await c.pilot.press("enter")
        download = c.app.chat.downloads.current
        await c.until(lambda: download.stage is Stage.RUNNING and "kB of" in c.screen())
        await c.pilot.press("ctrl+t")
        await c.until(lambda: download.stage is Stage.PAUSED)
        await c.until(lambda: "ctrl+t resumes" in c.screen())
        assert list(tmp_path.rglob("*.incomplete"))
        gate.set()
        await c.pilot.press("ctrl+t")
        await c.until(lambda: download.stage is Stage.DONE)
        await c.until(lambda: "all hashes match" in c.screen())
        assert max(hub.starts("model.safetensors")) > 0  # it went on where it was
        await c.until(lambda: "download org/tiny" not in c.screen())
        await c.pilot.press("enter")
        await c.until(lambda: len(models.loaded) == 1)


@pytest.mark.slow
async def test_cancel_removes_what_came(chat: Any, hub: Hub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = Repo(model_files(tmp_path / "made"))
    hub.body = lambda file, start, rest: rest[: len(rest) // 3] if "safetensors" in file else rest
    async with chat(FakeEngine("ok"), size=(100, 36), models=Models()) as c:
        await opened(c)
        await c.pilot.press(*"org/tiny", "enter")
        await c.until(lambda: stage(c) is Stage.PLANNED)
        await c.pilot.press("enter")
        await c.until(lambda: bool(list(tmp_path.rglob("*.incomplete"))))
        await c.pilot.press("ctrl+x")
        await c.until(lambda: stage(c) is Stage.CANCELLED)
        await c.until(lambda: "downloaded data is removed" in c.screen())
        assert not list(tmp_path.rglob("*.incomplete"))


@pytest.mark.slow
async def test_a_download_goes_on_under_the_chat_and_tells_its_end(
    chat: Any, hub: Hub, tmp_path: Path
) -> None:
    hub.repos["org/tiny"] = Repo(model_files(tmp_path / "made"))
    async with chat(FakeEngine("ok"), models=Models()) as c:
        await opened(c)
        await c.pilot.press(*"org/tiny", "enter")
        await c.until(lambda: stage(c) is Stage.PLANNED)
        hub.seconds_per_piece = 0.3
        await c.pilot.press("enter", "escape")
        await c.ask("Hi?")
        await c.idle()
        await c.until(lambda: "org/tiny is downloaded: F6 loads it" in c.screen())
        assert c.app.models.watching is False  # nothing looks any more


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
async def test_a_model_of_the_catalog_is_downloaded_and_loaded(
    chat: Any, hub: Hub, size: tuple[int, int]
) -> None:
    known = find_short("smollm2:135m")
    assert known is not None
    files = {known.file: (GOLDEN / "q8_0.gguf").read_bytes(), "other-Q4_K_M.gguf": b"GGUF"}
    hub.repos[known.repo] = Repo(files)
    models = Models()
    async with chat(FakeEngine("ok"), size=size, models=models) as c:
        screen = await opened(c)
        assert "to download" in c.screen()
        assert "↓ SmolLM2 135M" in c.screen()
        await c.pilot.press(*"smollm2:135")
        await c.until(lambda: known.about in c.screen())
        assert "fits in memory · licence apache-2.0 · smollm2:135m" in c.screen()
        assert not hub.requests
        await c.pilot.press("enter")
        await c.until(lambda: stage(c) is Stage.PLANNED)
        await c.until(lambda: "⏎ downloads" in c.screen())
        await c.pilot.press("enter")
        await c.until(lambda: stage(c) is Stage.DONE)
        await c.until(lambda: any(isinstance(row, ModelSummary) for row in screen._shown))
        assert "↓ SmolLM2 135M" not in c.screen()
        assert getattr(screen._chosen(), "name", "") == str(known.hub_name)
        await c.pilot.press("enter")
        await c.until(lambda: len(models.loaded) == 1)


async def test_what_does_not_fit_says_so(chat: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "free_memory", lambda: 2 * 10**9)
    async with chat(FakeEngine("ok"), models=Models()) as c:
        await opened(c)
        await c.pilot.press(*"gpt-oss")
        await c.until(lambda: "! gpt-oss 20B" in c.screen())
        assert "too big for the free memory · licence apache-2.0 · gpt-oss:20b" in c.screen()
        await c.pilot.press(*["backspace"] * 7, *"qwen3:06")
        await c.until(lambda: "not found here; did you mean qwen3:0.6b?" in c.screen())


@pytest.mark.slow
async def test_a_command_offers_the_download(chat: Any, hub: Hub) -> None:
    known = find_short("smollm2:135m")
    assert known is not None
    hub.repos[known.repo] = Repo({known.file: (GOLDEN / "q8_0.gguf").read_bytes()})

    class Here(Models):
        def check(self, model: str) -> object:
            return resolve(model)

    models = Here()
    async with chat(FakeEngine("ok"), models=models) as c:
        await c.ask("/model smollm2:135m")
        await c.until(lambda: stage(c) is Stage.PLANNED)
        await c.until(lambda: "⏎ downloads" in c.screen())
        assert not any("/resolve/" in request.path for request in hub.requests)
        await c.pilot.press("enter")
        await c.until(lambda: stage(c) is Stage.DONE)
        await c.until(lambda: isinstance(c.app.screen._chosen(), ModelSummary))
        await c.pilot.press("enter")
        await c.until(lambda: len(models.loaded) == 1)
        await c.ask("/model qwen3:06b")
        await c.until(lambda: "did you mean qwen3:0.6b?" in " ".join(c.screen().split()))


@pytest.mark.slow
async def test_models_of_other_programs_and_folders(
    chat: Any, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama = tmp_path / "ollama"
    blob = ollama / "blobs" / f"sha256-{'a' * 64}"
    blob.parent.mkdir(parents=True)
    blob.write_bytes((GOLDEN / "q8_0.gguf").read_bytes())
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"}
    manifest = ollama / "manifests/registry.ollama.ai/library/qwen3/0.6b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": [layer]}))
    monkeypatch.setenv("OLLAMA_MODELS", str(ollama))
    named = tmp_path / "named"
    named.mkdir()
    for name in ("a-Q4_0.gguf", "b-Q8_0.gguf", "\x1b[31mc.gguf"):
        (named / name).write_bytes((GOLDEN / "q4_0.gguf").read_bytes())
    models, look = Models(), ChatOptions(model_folders=(named, tmp_path / "nothing"))
    async with chat(FakeEngine("ok"), size=(100, 30), models=models, look=look) as c:
        await opened(c)
        assert "skipped (No such file or directory): /" in c.screen()
        for name, source in (("qwen3:0.6b", "Ollama"), ("a-Q4_0", "named"), ("b-Q8_0", "named")):
            assert any(name in line and source in line for line in c.screen().splitlines())
        assert "\x1b" not in c.screen()
        await c.pilot.press(*"Qwen3 0.6")  # the catalog's name finds what is here
        assert "↓ Qwen3 0.6B" not in c.screen()
        assert str(blob)[:40] in c.screen()
        await c.pilot.press("ctrl+d")
        assert "only downloaded models can be deleted here" in c.screen()
        assert blob.exists()
        await c.pilot.press("enter")
        await c.until(lambda: len(models.loaded) == 1)


async def test_tab_completes_paths_and_names(chat: Any, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "several"
    folder.mkdir(parents=True)
    (tmp_path / "models" / "notes.txt").write_text("no model")
    for name in ("one.gguf", "two.gguf"):
        (folder / name).write_bytes(b"GGUF")
    models = Models()
    async with chat(FakeEngine("ok"), size=(120, 30), models=models) as c:
        screen = await opened(c)
        field = screen.query_one(Input)
        field.value = f"{tmp_path}/mo"
        await c.pilot.press("tab", "tab")
        assert field.value == f"{folder}/"
        await c.pilot.press("tab")
        assert "one.gguf  two.gguf" in c.screen()
        assert screen._shown[1:] == [str(folder / "one.gguf"), str(folder / "two.gguf")]
        field.value = "smollm2:13"
        await c.pilot.press("tab")
        assert field.value == "smollm2:135m"
        field.value = str(folder)
        await c.until(lambda: len(screen._shown) == 3)
        await c.pilot.press("down", "enter")
        await c.until(lambda: c.app.session.info.name == "two.gguf")
        await c.idle()
        c.app.composer.set_text("/model qwen3:0")
        await c.pilot.press("tab")
        assert c.app.composer.text == "/model qwen3:0.6b "
        c.app.composer.set_text(f"/model {folder}/o")
        await c.pilot.press("tab")
        assert c.app.composer.text == f"/model {folder}/one.gguf "


@pytest.mark.slow
async def test_what_cannot_be_downloaded_says_why(chat: Any, hub: Hub) -> None:
    async with chat(FakeEngine("ok"), size=(100, 30), models=Models()) as c:
        await opened(c)
        await c.pilot.press(*"org/nowhere", "enter")
        await c.until(lambda: stage(c) is Stage.FAILED)
        await c.until(lambda: "check the spelling" in c.screen())
