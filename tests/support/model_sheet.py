"""The models sheet in tests: fakes that are loaded by name, and how it is opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fakes import FakeEngine

from ropechat.errors import MemoryLimitError, ModelFileError
from ropechat.tui.screens.models import ModelsScreen


class Models:
    """Loads fakes by name; `bad` ones are refused by their headers, `big` ones when they are loaded."""

    def __init__(self) -> None:
        self.loaded: list[FakeEngine] = []
        self.gate = threading.Event()
        self.gate.set()

    def check(self, model: str) -> object:
        if "bad" in model:
            raise ModelFileError(f"{model}: no header")
        return None

    def load(self, model: str, context: int | None = None) -> FakeEngine:
        self.gate.wait(60)
        if "big" in model:
            raise MemoryLimitError(f"{model}: does not fit")
        self.loaded.append(FakeEngine(f"I am {Path(model).name}.", name=Path(model).name))
        return self.loaded[-1]


async def opened(c: Any, key: str = "f6") -> ModelsScreen:
    await c.pilot.press(key)
    await c.until(lambda: isinstance(c.app.screen, ModelsScreen) and c.app.screen._read)
    screen: ModelsScreen = c.app.screen
    return screen
