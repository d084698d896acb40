"""Run one target of `targets.py` under atheris: python tests/trust/fuzz_python.py TARGET [libFuzzer's
options and folders]."""

import contextlib
import importlib
import json
import pkgutil
import random
import shlex
import sys
from pathlib import Path
from typing import Any

import atheris

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

with atheris.instrument_imports(include=["ropechat", "tomllib", "jinja2"]):
    import targets

    import ropechat

    # What a function imports later would not be instrumented. Some need packages that are not here.
    for module in pkgutil.walk_packages(ropechat.__path__, "ropechat."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 1e300, -0.5, 1e-320)
TEXTS = (
    "",
    "x",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "\0",
    "▁",
    "a" * 300,
    "..",
    "<0x-1>",
    "<0xZZ>",
    "{{",
    "(a|a)*b",
)


def change(value: Any, draw: random.Random) -> Any:
    """A value with one thing in it changed, moved, doubled or removed."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice([*value])
        match draw.randrange(10):
            case 0:
                return {name: one for name, one in value.items() if name != key}
            case 1:
                return value | {key: value[draw.choice([*value])]}
            case 2:
                return value | {draw.choice(TEXTS): value[key]}
        return value | {key: change(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        match draw.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value[:at], value[at], *value[at:]]
            case 2:
                return value[:at]
        return [*value[:at], change(value[at], draw), *value[at + 1 :]]
    match draw.randrange(8):
        case 0:
            return draw.choice(NUMBERS)
        case 1:
            return draw.choice(TEXTS)
        case 2:
            return draw.choice((None, True, False, [], {}, [value], {"type": value}))
        case 3 if isinstance(value, str):
            return value + draw.choice(TEXTS)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return draw.choice((value + 1, value - 1, -value, value * 2, str(value)))
    return draw.choice(NUMBERS)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Every second time a change of the JSON, behind what is before it."""
    draw = random.Random(seed)
    skip = 1 if name in ("openai_body", "grammar") else 0
    if draw.random() < 0.6:
        try:
            value = json.loads(data[skip:])
        except (ValueError, RecursionError):
            return bytes(atheris.Mutate(data, most))
        for _ in range(draw.randint(1, 3)):
            value = change(value, draw)
        try:
            made = data[:skip] + json.dumps(value).encode()
        except (ValueError, RecursionError):
            return data
        return made if len(made) <= most else data
    return bytes(atheris.Mutate(data, most))


name = sys.argv.pop(1)
sys.argv[0] = shlex.join((sys.executable, __file__, name))  # what libFuzzer starts to merge a corpus
more = {"custom_mutator": mutate} if name in targets.JSON else {}
atheris.Setup(sys.argv, targets.TARGETS[name], **more)
atheris.Fuzz()
