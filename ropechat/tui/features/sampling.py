"""Sampling: the settings and biases of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat import presets
from ropechat.errors import RopechatError
from ropechat.sampling import MAX_BIAS, MAX_COUNT
from ropechat.tui.features.turns import TurnsFeature
from ropechat.tui.format.status import model_heading
from ropechat.tui.render.blocks import AnswerBlock
from ropechat.tui.render.cursor import TokenPlace
from ropechat.tui.ui import SIDE_PANEL, ChatUi, Feature, command, event
from ropechat.tui.widgets.sampling_panel import ITEMS
from ropechat.util.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.widget import Widget

    from ropechat.sampling import Sampling

Encodings = tuple[tuple[int, ...], ...]
BAN = "/ban TEXT or #ID; quoted: exactly that text; unquoted: also after a space"
BIAS = f"/bias TEXT or #ID, then -{MAX_BIAS:g} to {MAX_BIAS:g} (0: none); /bias off removes all"
MAX_SEARCHED = 200  # tokens of an answer in which the least likely one is searched


class SamplingFeature(Feature):
    """The commands for sampling; changes apply from the next answer on."""

    def __init__(self, ui: ChatUi) -> None:
        super().__init__(ui)
        self.turns, self.inspector = ui[TurnsFeature], ui.inspector
        self.side_panel, self.panel = ui.side_panel, ui.sampling_panel
        self._on_encoded: Callable[[Encodings], None] | None = None

    @command("alternative.ban")
    def _ban_chosen(self) -> None:
        self.bias_chosen(-MAX_BIAS)

    @command("alternative.more")
    def _favour_chosen(self) -> None:
        self.bias_chosen(1.0)

    @command("alternative.less")
    def _disfavour_chosen(self) -> None:
        self.bias_chosen(-1.0)

    # --- the settings ---

    def open(self) -> None:
        """Open the settings, with their effect on the token under the cursor or an unlikely one."""
        from ropechat.tui.screens.sampling import SamplingScreen

        if self.ui.closes(SamplingScreen):
            return
        if self.ui.app.size.width < SIDE_PANEL:
            screen = SamplingScreen(self._recorded(), self.session, self.keymap, self.ui.vocabularies)
            self.ui.push(screen)
        elif self.panel.display and self.panel_focus:
            self.close_panel()
        else:
            self.side_panel.show(self.panel, True)
            self.panel.begin(self._recorded())
            self.ui.give_keys(self.panel)
            self.ui.refresh()

    def close_panel(self) -> None:
        """Close the settings next to the transcript."""
        self.side_panel.show(self.panel, False)
        self.ui.write()

    @property
    def panel_focus(self) -> Widget | None:
        """The focused part of the settings next to the transcript, or None."""
        focused = self.ui.chat_focus
        return focused if focused is not None and self.panel in focused.ancestors_with_self else None

    def footer_keys(self) -> list[tuple[str, str]]:
        """The keys of the settings next to the transcript, while focused."""
        return self.keymap.pairs(ITEMS) if self.panel_focus else []

    def refresh(self) -> None:
        """Update the panel; close it if the screen is too narrow."""
        if self.panel.display and self.ui.app.size.width < SIDE_PANEL:
            self.side_panel.show(self.panel, False)
        if self.panel.display:
            self.panel.try_on(self._recorded())

    def _recorded(self) -> TokenPlace | None:
        if self.transcript.cursor is not None:
            return self.transcript.cursor
        for block in reversed(self.transcript.blocks):
            if isinstance(block, AnswerBlock) and block.steps:
                steps = block.steps[-MAX_SEARCHED:]
                least = min(range(len(steps)), key=lambda at: steps[at].logprob)
                return TokenPlace(block, len(block.steps) - len(steps) + least)
        return None

    def use(self, sampling: Sampling) -> None:
        """Use these settings from the next answer on."""
        self.session.sampling = sampling
        self.ui.refresh()

    @command("sampling.open")
    def _preset(self, words: str) -> str:
        if not words:
            self.open()
            return ""
        if words == "model":
            if (own := self.session.own_sampling()) is None:
                return "this model recommends no settings"
            self.session.restore_sampling(own)
            self.ui.refresh()
            return own.line()
        if words not in presets.PRESETS:
            return f"/sampling {'|'.join(presets.PRESETS)}|model"
        self.session.set_preset(words)
        self.ui.refresh()
        return f"{words}: {presets.describe_preset(words)}"

    @command("sampling.set")
    def _set(self, words: str) -> str:
        if not words:
            self.open()
            return ""
        given, _, value = words.partition(" ")
        try:
            name = presets.full_name(given)
            if name in presets.THINKING and (refusal := self._never_thinks()):
                return refusal
            if value.strip():
                self.use(presets.with_value(self.session.sampling, name, value.strip()))
        except ValueError as error:
            return str(error)
        source = self.session.sourced.source(name)
        value = presets.format_value(self.session.sampling, name)
        return f"{name} {value} ({source}) · {presets.describe_setting(name)}"

    @command("sampling.think")
    def _think(self, words: str) -> str:
        """/think: whether the model thinks before the next answer, and for how many tokens."""
        if refusal := self._never_thinks():
            return refusal
        try:
            if words:
                self.use(presets.with_thinking(self.session.sampling, words))
        except ValueError as error:
            return str(error)
        chosen, known = presets.describe_thinking(self.session.sampling), self.session.thinking.think
        if known != self.session.sampling.think:
            return f"{chosen}: this model has no efforts, so it thinks as with on"
        return f"{chosen}, from the next answer on" if words else chosen

    def _never_thinks(self) -> str:
        """A sentence that says that the model does not think; "" if it does, or is not loaded yet."""
        info = self.session.info
        if info is None or info.thinks:
            return ""
        return f"{model_heading(info.name)} does not think: its chat template has no thoughts"

    @command("sampling.seed")
    def _seed(self, words: str) -> str:
        """/seed: show or set the seed of the next answer; show that of the newest."""
        last = self.session.last
        node = self.session.tree.nodes.get(last.node or "") if last is not None else None
        newest = node.sampling.seed if node is not None and node.sampling is not None else None
        if words == "lock" and newest is None:
            return "no answer has a seed yet; /seed N sets one"
        value = {"lock": str(newest), "free": "none"}.get(words, words)
        try:
            if value:
                self.use(presets.with_value(self.session.sampling, "seed", value))
        except ValueError as error:
            return str(error)
        now = self.session.sampling.seed
        before = "" if newest is None else f"; the newest answer's is {newest}"
        return ("each answer gets a new seed" if now is None else f"seed {now}") + before

    @command("sampling.schema")
    def _schema(self, words: str) -> str:
        """/schema: what answers must match from the next one on; without words, what they match now."""
        if words == "off":
            self.use(replace(self.session.sampling, grammar=None))
        elif words:
            from ropechat.engine.grammars import schema_of  # imported here: rarely needed

            try:
                grammar = schema_of(words)
            except RopechatError as error:
                return str(error)
            self.use(replace(self.session.sampling, grammar=grammar))
            name = "this schema" if words.startswith("{") else f"the schema {Path(words).name}"
            return f"answers are JSON of {name}; /schema off ends this"
        now = self.session.sampling.grammar
        return "answers are any text; /schema FILE" if now is None else f"answers match a {now.name}"

    # --- single tokens ---

    def bias_chosen(self, by: float) -> None:
        """Ban, favour or disfavour the selected alternative in all later draws."""
        candidate = self.inspector.chosen if self.inspector.display else None
        if candidate is None:
            self.ui.hint(f"no alternative is selected; {self.keymap.named('view.inspect')} lists them")
            return
        info, token = self.session.info, self.inspector.token
        wrote = "" if token is None else token.block.answer.model
        if self.session.coming:
            self.ui.hint("another model is being loaded")
            return
        if info is not None and wrote != info.name:  # the same ids are other tokens
            self.ui.hint(f"written by {model_heading(wrote)}: only that model has these tokens")
            return
        self.use(presets.change_bias(self.session.sampling, candidate.id, by))
        self._tell_bias([candidate.id])

    def _tell_bias(self, ids: Sequence[int]) -> None:
        bias = dict(self.session.sampling.logit_bias).get(ids[0], 0.0)
        names, again = self._spelled(ids), self.turns.way_to("answer.regenerate")
        self.ui.hint(
            f"{names}: {presets.describe_bias(bias)} from the next answer on; {again} writes another answer"
        )

    def _spelled(self, ids: Sequence[int]) -> str:
        return " and ".join(one_line(self.ui.vocabularies.of_loaded(id)) for id in ids)

    @command("sampling.ban")
    def ban(self, words: str) -> str:
        """/ban: never draw a token again; without words, list the banned ones. Returns the message."""
        if words:
            return self._weigh(words, -MAX_BIAS, BAN)
        return self._list_weighed("banned", lambda bias: bias <= -MAX_BIAS)

    @command("sampling.bias")
    def bias(self, words: str) -> str:
        """/bias: make a token more or less likely; without words, list the changed ones."""
        if words == "off":
            self.use(replace(self.session.sampling, logit_bias=()))
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
                return f"#ID: must be from #0 to #{count - 1} (got {text:.12})"
            self._set_bias([id], bias)
            return ""
        quoted = len(text) > 2 and text[0] == text[-1] == '"'
        text = text[1:-1] if quoted else text
        if not text:
            return usage
        texts = (text,) if quoted else (text, f" {text}")
        self._on_encoded = lambda found: self._weigh_encoded(text, found, bias)
        self.chat.submit(self.session.encode(texts))
        return "this is done when the answer is complete" if self.session.generating else ""

    @event(ev.TextsEncoded)
    def _encoded(self, event: ev.TextsEncoded) -> None:
        """Handle the token ids of a typed text."""
        found, self._on_encoded = self._on_encoded, None
        if found is not None:
            found(event.ids)

    def _weigh_encoded(self, text: str, found: Encodings, bias: float) -> None:
        single = list(dict.fromkeys(ids[0] for ids in found if len(ids) == 1))
        if single:
            self._set_bias(single, bias)
        elif not found or not found[-1]:
            self.ui.hint("cannot tokenize this text")
        else:
            self._ask_which(text, list(dict.fromkeys(found[-1])), bias)

    def _ask_which(self, text: str, ids: list[int], bias: float) -> None:
        from ropechat.tui.screens.tokens import TokensScreen

        title = f"“{one_line(text):.20}” is {len(ids)} tokens: choose one"
        does = "Never draw" if bias <= -MAX_BIAS else f"Add {bias:+g} to the logit of"
        note = f"{does} the chosen one, everywhere: also inside other words."
        rows = [(id, "") for id in ids]
        screen = TokensScreen(title, note, rows, self.keymap, self.ui.vocabularies.of_loaded)
        self.ui.push(screen, lambda id: self._set_bias([id], bias))

    def _set_bias(self, ids: Sequence[int], bias: float) -> None:
        for id in ids:
            self.use(presets.with_bias(self.session.sampling, id, bias))
        self._tell_bias(ids)

    def _list_weighed(self, what: str, wanted: Callable[[float], bool]) -> str:
        """A dialog of the tokens; choosing one removes its bias."""
        from ropechat.tui.screens.tokens import TokensScreen

        rows = [
            (id, presets.describe_bias(bias)) for id, bias in self.session.sampling.logit_bias if wanted(bias)
        ]
        if not rows:
            return f"no token is {what}"
        note = "The chosen one gets its own probability back."
        spell = self.ui.vocabularies.of_loaded
        screen = TokensScreen(what, note, rows, self.keymap, spell, does="remove")
        self.ui.push(screen, lambda id: self._set_bias([id], 0.0))
        return ""
