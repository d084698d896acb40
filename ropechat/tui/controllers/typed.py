"""Commands typed over model, sampling, system text and context: the words behind them in, a hint out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropechat.chat import personas, presets
from ropechat.chat.errors import explain
from ropechat.errors import RopechatError
from ropechat.util.text import closest_name, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropechat.tui.app import ChatApp


def _model(app: ChatApp, words: str) -> str:
    app.switch_model(words)
    return ""


def _sampling(app: ChatApp, words: str) -> str:
    if words not in presets.PRESETS:
        return f"/sampling {'|'.join(presets.PRESETS)}"
    app.use_sampling(presets.with_preset(app.session.sampling, words))
    return f"{words}: {presets.describe_preset(words)}"


def _set(app: ChatApp, words: str) -> str:
    given, _, value = words.partition(" ")
    try:
        name = presets.full_name(given)
        if value.strip():
            app.use_sampling(presets.with_value(app.session.sampling, name, value.strip()))
    except ValueError as error:
        return str(error)
    return f"{name} {presets.format_value(app.session.sampling, name)} · {presets.DESCRIPTIONS[name]}"


def _seed(app: ChatApp, words: str) -> str:
    """/seed: that of what comes next, and of the newest answer."""
    last = app.session.last
    node = app.session.tree.nodes.get(last.node or "") if last is not None else None
    newest = node.sampling.seed if node is not None and node.sampling is not None else None
    if words == "lock" and newest is None:
        return "no answer has a seed that could be locked; /seed N sets one"
    value = {"lock": str(newest), "free": "none"}.get(words, words)
    try:
        if value:
            app.use_sampling(presets.with_value(app.session.sampling, "seed", value))
    except ValueError as error:
        return str(error)
    now = app.session.sampling.seed
    before = "" if newest is None else f"; the newest answer's is {newest}"
    return ("each answer draws with a seed of its own" if now is None else f"seed {now}") + before


def _system(app: ChatApp, words: str) -> str:
    app.use_system("" if words == "-" else words)
    return "no system text from the next question on" if words == "-" else ""


def _persona(app: ChatApp, words: str) -> str:
    verb, _, name = words.partition(" ")
    try:
        if verb == "save" and name.strip():
            if not app.session.system:
                return "there is no system text to keep; /system TEXT writes one"
            path = personas.save(name.strip(), app.session.system)
            app.learn_personas()
            return f"kept: {path}"
        kept = personas.load()
    except RopechatError as error:
        return explain(error)
    if words not in kept:
        return _no_persona(words, list(kept))
    app.use_system(kept[words])
    return ""


def _no_persona(words: str, kept: list[str]) -> str:
    meant = closest_name(words, kept)
    hint = f"did you mean {meant}?" if meant else f"kept: {', '.join(kept)}"
    hint = hint if kept else "none is kept yet; /persona save NAME keeps the system text as one"
    return f"{one_line(words):.40}: no such persona; {hint}"


def _context(app: ChatApp, words: str) -> str:
    return app.when_full(words)


WORDS: dict[str, Callable[[ChatApp, str], str]] = {
    "model.pick": _model,
    "sampling.open": _sampling,
    "sampling.set": _set,
    "sampling.ban": lambda app, words: app.ban(words),
    "sampling.bias": lambda app, words: app.bias(words),
    "sampling.seed": _seed,
    "prompt.system": _system,
    "prompt.persona": _persona,
    "prompt.full": _context,
}
