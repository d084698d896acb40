"""A headless Chromium, driven through its debugging protocol over two pipes.

python tests/support/browser.py PAGE.html PICTURE.png [WIDTH HEIGHT [SELECTOR]]     SELECTOR: is clicked first
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--password-store=basic",
    "--remote-debugging-pipe",
)


def chromium() -> str:
    """The program's path; skips the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium; on Debian: apt-get install --no-install-recommends chromium")
    return found


class Browser:
    """One Chromium process. `open` makes a page."""

    def __init__(self, folder: Path) -> None:
        from_us, to_us = os.pipe(), os.pipe()

        def wire() -> None:  # Chromium reads from descriptor 3 and writes to 4
            read, write = os.dup(from_us[0]), os.dup(to_us[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us[0])
        os.close(to_us[1])
        self._write, self._read = from_us[1], to_us[0]
        self._last, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events meanwhile are kept in `events`."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next(60.0)
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: Path, *, script: bool = True, width: int = 1200, height: int = 800) -> Page:
        """Open a local file in a new page and wait until it has loaded. script: whether its script runs."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.size(width, height)
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
        page.call("Page.navigate", url=path.resolve().as_uri())
        while not page.had("Page.loadEventFired"):
            self.events.append(self._next(60.0))
        return page

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        self.process.terminate()
        self.process.wait(60)


class Page:
    """One page of a Browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self.browser.call(method, self.session, **parameters)

    def events(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the events of one kind so far."""
        return [
            event["params"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event.get("method") == method
        ]

    def had(self, method: str) -> bool:
        """Whether there was such an event."""
        return bool(self.events(method))

    def requests(self) -> list[str]:
        """The addresses that the page asked for, without its own file."""
        urls = [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]
        return [url for url in urls[1:] if not url.startswith("data:,")]

    def faults(self) -> list[str]:
        """Exceptions of the script, and what the policy or the console reported."""
        thrown = [event["exceptionDetails"]["text"] for event in self.events("Runtime.exceptionThrown")]
        return thrown + [event["entry"]["text"] for event in self.events("Log.entryAdded")]

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression (evaluated even where the page's own script is off)."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        """Set the size of the window in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def dark(self, on: bool = True) -> None:
        """Prefer dark colours."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def middle(self, selector: str) -> tuple[float, float]:
        """The middle of an element's first box."""
        box = self.value(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getClientRects()[0];"
            " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        return box[0], box[1]

    def point(self, selector: str) -> None:
        """Move the mouse over an element."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click an element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key, by its DOM name."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Escape": 27}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def type(self, text: str) -> None:
        """Type text into the focused element."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Write a picture of the window as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def main(page: str, picture: str, width: str = "1120", height: str = "520", clicked: str = "") -> None:
    """Write a picture of a page."""
    import tempfile

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(Path(folder))
        shown = browser.open(Path(page), width=int(width), height=int(height))
        if clicked:
            shown.click(clicked)
        shown.picture(Path(picture))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
