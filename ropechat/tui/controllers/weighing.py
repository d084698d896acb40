"""Tokens that are banned, favoured or disfavoured: chosen in the inspector, or typed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.chat import presets
from ropechat.sampling import MAX_BIAS, MAX_COUNT
from ropechat.tui.controllers.prompting import Prompting
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ropechat.chat import events as ev
    from ropechat.tui.commands.dispatch import Typed
    from ropechat.tui.widgets.reader import Reader

Encodings = tuple[tuple[int, ...], ...]
BAN = "/ban TEXT or #ID; in quotes exactly that text, else also behind a blank"
BIAS = f"/bias TEXT or #ID, then -{MAX_BIAS:g} to {MAX_BIAS:g} (0: as the model says); /bias off forgets all"


class Weighing(Prompting):
    """The commands over single tokens; they hold from the next answer on."""

    _on_encoded: Callable[[Encodings], None] | None = None

    def on_reader_bias(self, message: Reader.Bias) -> None:
        """Ban, favour or disfavour the alternative that is selected, in what is drawn from now on."""
        candidate = self.inspector.chosen if self.inspector.display else None
        if candidate is None:
            self._say_hint(f"no alternative is selected; {self.keymap.named('view.inspect')} lists them")
            return
        self.use_sampling(presets.change_bias(self.session.sampling, candidate.id, message.by))
        self._tell_bias([candidate.id])

    def _tell_bias(self, ids: Sequence[int]) -> None:
        bias = dict(self.session.sampling.logit_bias).get(ids[0], 0.0)
        names, again = self._spelled(ids), self.way_to("answer.regenerate")
        self._say_hint(
            f"{names}: {presets.describe_bias(bias)} from the next answer on; {again} writes another answer"
        )

    def _spelled(self, ids: Sequence[int]) -> str:
        return " and ".join(one_line(self.inspector.spelled(id)) for id in ids)

    # --- typed ---

    def typed(self) -> dict[str, Typed]:
        """Also over single tokens."""
        return {**super().typed(), "sampling.ban": self.ban, "sampling.bias": self.bias}

    def ban(self, words: str) -> str:
        """/ban: never draw a token again; without words those that are banned. Returns what is to be said."""
        if words:
            return self._weigh(words, -MAX_BIAS, BAN)
        return self._list_weighed("banned", lambda bias: bias <= -MAX_BIAS)

    def bias(self, words: str) -> str:
        """/bias: make a token more or less likely; without words those that are weighed."""
        if words == "off":
            self.use_sampling(replace(self.session.sampling, logit_bias=()))
        if words in ("", "off"):
            return self._list_weighed("banned or favoured", lambda bias: True)
        text, _, number = words.rpartition(" ")
        try:
            bias = float(number)
        except ValueError:
            return BIAS
        return self._weigh(text.strip(), bias, BIAS) if abs(bias) <= MAX_BIAS else BIAS

    def _weigh(self, text: str, bias: float, usage: str) -> str:
        info = self.session.info
        if info is None:
            return "no model is loaded, so there are no tokens yet"
        if text.startswith("#") and text[1:].isdecimal():
            id, count = int(text[1:13]), int(info.facts.get("vocab_size", 0))
            if id >= (count or MAX_COUNT):
                return f"{text:.12}: no such token; #0 to #{count - 1} are"
            self._set_bias([id], bias)
            return ""
        quoted = len(text) > 2 and text[0] == text[-1] == '"'
        text = text[1:-1] if quoted else text
        if not text:
            return usage
        texts = (text,) if quoted else (text, f" {text}")
        self._on_encoded = lambda found: self._encoded(text, found, bias)
        self._submit(self.session.encode(texts))
        return "this comes when the answer is complete" if self.session.generating else ""

    def on_encoded(self, event: ev.TextsEncoded) -> None:
        """It is known which tokens a text is."""
        found, self._on_encoded = self._on_encoded, None
        if found is not None:
            found(event.ids)

    def _encoded(self, text: str, found: Encodings, bias: float) -> None:
        single = list(dict.fromkeys(ids[0] for ids in found if len(ids) == 1))
        if single:
            self._set_bias(single, bias)
        elif not found or not found[-1]:
            self._say_hint("this text could not be made into tokens")
        else:
            self._ask_which(text, list(dict.fromkeys(found[-1])), bias)

    def _ask_which(self, text: str, ids: list[int], bias: float) -> None:
        from ropechat.tui.screens.tokens import TokensScreen

        title = f"“{one_line(text):.20}” is {len(ids)} tokens: which one is meant?"
        does = "Never draw" if bias <= -MAX_BIAS else f"Add {bias:+g} to the logit of"
        note = f"{does} the chosen one, wherever it stands: also within other words."
        rows = [(id, "") for id in ids]
        screen = TokensScreen(title, note, rows, self.keymap, self.inspector.spelled)
        self._push(screen, lambda id: self._set_bias([id], bias))

    def _set_bias(self, ids: Sequence[int], bias: float) -> None:
        for id in ids:
            self.use_sampling(presets.with_bias(self.session.sampling, id, bias))
        self._tell_bias(ids)

    def _list_weighed(self, what: str, wanted: Callable[[float], bool]) -> str:
        """A sheet of the tokens; choosing one lifts its bias."""
        from ropechat.tui.screens.tokens import TokensScreen

        rows = [
            (id, presets.describe_bias(bias)) for id, bias in self.session.sampling.logit_bias if wanted(bias)
        ]
        if not rows:
            return f"no token is {what}"
        note = "The chosen one is drawn as the model says again."
        screen = TokensScreen(what, note, rows, self.keymap, self.inspector.spelled)
        self._push(screen, lambda id: self._set_bias([id], 0.0))
        return ""
