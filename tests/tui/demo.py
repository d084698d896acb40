"""The chat on a fake engine, to be looked at: python tests/tui/demo.py [--rate N] [--completion] ..."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from fakes import STORY, FakeEngine  # noqa: E402

from ropechat.chat.live import LiveChat  # noqa: E402
from ropechat.errors import ModelNotFoundError  # noqa: E402
from ropechat.sampling import Sampling  # noqa: E402
from ropechat.tui import run_chat  # noqa: E402

WIDE = (
    "Wide text: 你好，世界。 これは試験です。 👩‍👩‍👧 family, flags 🇩🇪🇫🇷, e\u0301 accents, ☺️ and "
    "\x1b[31mescapes\x1b[0m, [/INST] and [bold]markup[/bold].\n\n```python\ndef f(x):\n\treturn x\n```\n"
)


def main() -> int:
    """Parse, run, return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--prefill", type=float, default=0.3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--completion", action="store_true")
    parser.add_argument("--broken", action="store_true")
    args = parser.parse_args()

    def load() -> FakeEngine:
        time.sleep(args.load)
        if args.broken:
            raise ModelNotFoundError("models/nowhere: not found; give a directory with config.json")
        return FakeEngine(
            [STORY * args.repeat, WIDE * args.repeat, STORY],
            name="stories-1m",
            context=args.context,
            has_chat_template=not args.completion,
            rate=args.rate,
            prefill=args.prefill,
        )

    return run_chat(LiveChat(load, "models/stories-1m", Sampling(max_tokens=100_000)))


if __name__ == "__main__":
    sys.exit(main())
