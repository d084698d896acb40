"""The state of a chat, without a widget: its turns, and what the inference thread reports of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ropechat.chat import events as ev
from ropechat.chat.answer import Answer, Turn
from ropechat.chat.context import OverflowPolicy
from ropechat.chat.draft import split_attachments
from ropechat.chat.presets import PRESETS, with_preset
from ropechat.chat.recorder import ConversationRecorder
from ropechat.chat.stepping import Spot, Stepping
from ropechat.conversation import ConversationTree, Message, NodeState, Role, with_seed
from ropechat.sampling import AUTO, DEFAULTS, SETTINGS
from ropechat.sampling.sources import CHAT, PRESET, SourcedSampling
from ropechat.store.queries import make_title

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ropechat.conversation import Node, Origin
    from ropechat.sampling import Sampling, Thinking
    from ropechat.store.queries import Chat
    from ropechat.trace import FinishReason
    from ropechat.util.progress import Wait


class Session:
    """One chat: its tree, and the branch that is shown, as turns. Nothing else writes either."""

    def __init__(
        self,
        model: str,
        sampling: Sampling | SourcedSampling,
        system: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        recorder: ConversationRecorder | None = None,
    ) -> None:
        self.model = model
        if isinstance(sampling, SourcedSampling):
            given = sampling
        else:
            given = SourcedSampling(sampling, dict.fromkeys(SETTINGS, CHAT))
        self._sourced = self._of_new = given  # of the next answer, and of new chats
        self._system_of_new = system
        self.system = system  # of the next question
        self.personas: dict[str, str] = {}  # system text -> name
        self.when_full = OverflowPolicy.ASK
        self.notes: list[str] = []  # remarks about the prompts of the loaded model
        self.info: ev.ModelInfo | None = None
        self.coming = ""  # the model that is being loaded to replace another
        self.load_error: BaseException | None = None
        self.recorder = recorder or ConversationRecorder(None)
        self.tree = ConversationTree()
        self.turns: list[Turn] = []
        self.stepping: Stepping | None = None  # the answer that the user draws now
        self.draft_tokens: int | None = None  # tokens of the whole prompt, draft included; None: not known
        self.draft_unread = 0  # tokens of that prompt that are not prefilled yet
        self.draft_seconds: float | None = None  # that reading them will take; None: not known
        self.draft_alone = False  # the draft alone is too long, and the tokens count only it
        self.wait: Wait | None = None  # how far the model is with loading or reading
        self.read_ahead: tuple[int, int] | None = None  # tokens that are read, and of how many; None: all
        self._starts_branch = False  # the next question begins a branch, with another system prompt
        self._serial = 0
        self._clock = clock

    @property
    def sampling(self) -> Sampling:
        """The settings of the next answer, stored with the chat; new chats begin with those of the start."""
        return self._sourced.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self.set_sampling(sampling)

    def set_sampling(self, sampling: Sampling, source: str = CHAT, names: Collection[str] = ()) -> None:
        """Set the settings of the next answer. source: of what changes, and of these settings."""
        before, self._sourced = self.sampling, self._sourced.changed(sampling, source, frozenset(names))
        if self.info is not None and (before.think == "off") != (sampling.think == "off"):
            self._sourced = self._sourced.with_own(self.info.recommended(sampling))
        self.recorder.store_sampling(self.sampling)

    def set_preset(self, name: str) -> None:
        """Use a preset from the next answer on. Raises KeyError."""
        self.set_sampling(with_preset(self.sampling, name), PRESET, PRESETS[name])

    def restore_sampling(self, before: SourcedSampling) -> None:
        """Set settings with the sources that they had."""
        self._sourced = before
        self.recorder.store_sampling(before.sampling)

    def own_sampling(self) -> SourcedSampling | None:
        """The settings with what the loaded model's maker recommends; None if that is not known.

        Other stages are as by default; lengths and seed stay.
        """
        own = self.info.recommended(self.sampling) if self.info is not None else {}
        if not own:
            return None
        stays = ("max_tokens", "thinking_budget", "seed")
        given = {name: source for name, source in self._sourced.sources.items() if name in stays}
        others = {name: getattr(DEFAULTS, name) for name in SETTINGS if name not in stays}
        return SourcedSampling(replace(self.sampling, **others), given).with_own(own)

    @property
    def sourced(self) -> SourcedSampling:
        """`sampling`, and where its values are from."""
        return self._sourced

    @property
    def thinking(self) -> Thinking:
        """Whether the model thinks before the next answer, as far as it can."""
        return self._thinking_of(self.sampling)

    def _thinking_of(self, sampling: Sampling) -> Thinking:
        """A model without thoughts cannot be told to have some, nor one without efforts how much of them."""
        info, thinking = self.info, sampling.thinking
        if info is None or info.has_effort or thinking.think in ("auto", "on", "off"):
            return thinking if info is None or info.thinks else AUTO
        return thinking._replace(think="on") if info.thinks else AUTO

    @property
    def thoughts_left_out(self) -> int:
        """Tokens of earlier thoughts that the next prompt does not repeat; 0 where it does."""
        if self.info is None or self.info.repeats_thoughts:
            return 0
        sent = {node.id for node in self.reads()}
        thoughts = [turn.answer.thought for turn in self.turns if turn.node in sent]
        return sum(thought.tokens for thought in thoughts if thought is not None)

    @property
    def last(self) -> Turn | None:
        """The newest turn; None in an empty chat."""
        return self.turns[-1] if self.turns else None

    @property
    def generating(self) -> bool:
        """Whether an answer is being written."""
        return self.last is not None and self.last.answer.live

    @property
    def context(self) -> int | None:
        """Tokens the model can hold; None before it is loaded."""
        return self.info.context if self.info else None

    @property
    def used(self) -> int | None:
        """Tokens of the context that are in use; None while unknown."""
        if self.generating and self.last is not None:
            node = self.last.answer.node
            return node.prompt_tokens + len(node.steps) if node.prompt_tokens else None
        return self.draft_tokens

    @property
    def empty(self) -> bool:
        """Whether nothing was asked in this chat."""
        return all(node.role is Role.SYSTEM for node in self.tree.nodes.values())

    @property
    def title(self) -> str:
        """The chat's name, or its first words."""
        if self.recorder.title or not self.turns:
            return self.recorder.title or "new chat"
        return make_title(split_attachments(self.turns[0].question)[0])

    def messages(self, draft: str = "") -> tuple[Message, ...]:
        """The messages that the model would read: system prompt, all turns in context, and the draft."""
        begins = self._starts_branch or not self.tree.nodes
        system = [Message(Role.SYSTEM, self.system)] if self.system else []
        found = system if begins else self._messages()
        return (*found, Message(Role.USER, draft)) if draft else tuple(found)

    def reads(self, question: str | None = None) -> list[Node]:
        """The nodes that the model reads for a question; without one: for the next question."""
        found = self.tree.context_nodes(question)
        start = next((node.context_start for node in reversed(found) if node.context_start), None)
        head = 1 if found and found[0].role is Role.SYSTEM else 0
        first = next((place for place, node in enumerate(found) if node.id == start), head)
        return found[:head] + found[first:]

    def _messages(self, question: str | None = None) -> tuple[Message, ...]:
        return tuple(node.message for node in self.reads(question))

    def _start(self, question: str, start: str) -> None:
        """From a question on, leave out what comes before the node `start`."""
        self.tree[question].context_start = start
        self.recorder.start(self.tree[question])

    def truncate(self, question: str, cut: int) -> None:
        """For a question, leave out the messages before one of its `cuts`."""
        self._start(question, self.reads(question)[cut].id)

    def left_out(self, question: str) -> int:
        """The number of earlier questions that the model does not read for this one."""
        asked = [node for node in self.tree.context_nodes(question) if node.role is Role.USER]
        return len(asked) - sum(node.role is Role.USER for node in self.reads(question))

    @property
    def persona(self) -> str:
        """The name of the next question's system prompt; "" for none, or one without a name."""
        return self.personas.get(self.system or "", "")

    @property
    def starts_branch(self) -> bool:
        """Whether the next question begins a new branch."""
        return self._starts_branch

    # --- what the user does; a returned turn has a request that the caller submits ---

    def step(self, words: str = "", node: str = "", index: int | None = None) -> Stepping:
        """Begin an answer that the user draws: to a new question, or after the first `index` tokens of an
        answer (None: all); without either to the newest question."""
        self.end_stepping()
        source = self.tree[node] if node else None
        question = self._question(words).id if words else self.turns[-1].asked
        if source is not None and source.parent is not None:
            question = source.parent
        steps = () if source is None else tuple(source.steps[:index])
        used = self._settings(question, source if steps else None)
        model = self.info.name if self.info else self.model
        self.stepping = Stepping(
            *(self.tree, self.recorder, question, Spot(model, self._messages(question), used, steps)),
            source if steps else None,
            asked=bool(words),
        )
        return self.stepping

    def end_stepping(self) -> Node | None:
        """End the answer that the user draws, if there is one; None if nothing was taken."""
        stepping, self.stepping = self.stepping, None
        if stepping is None:
            return None
        node = stepping.end()
        if node is None and stepping.asked and not self.tree.children(stepping.question):
            self.recorder.remove(self.tree.remove(stepping.question))
            if self.empty:
                self.clear()
        return node

    def set_system_prompt(self, system: str | None) -> None:
        """Set the system prompt of the next question; a changed prompt starts a new branch."""
        self.system = system or None
        self._starts_branch = bool(self.tree.nodes) and self.system_of_path() != self.system
        self.draft_tokens = None

    def system_of_path(self) -> str | None:
        """The system prompt of the branch that is shown; in an empty chat, of the first question."""
        if not self.tree.nodes:
            return self.system
        path = self.tree.path()
        return path[0].text if path and path[0].role is Role.SYSTEM else None

    def _move_to_root(self) -> None:
        roots = (node for node in self.tree.children(None) if node.role is Role.SYSTEM)
        self.tree.follow(next((node.id for node in roots if node.text == self.system), None))
        self._starts_branch = False

    def ask(self, question: str, sampling: Sampling | None = None) -> Turn:
        """Add a question at the end of the branch that is shown, and an answer to it.

        sampling: of this answer only, with its seed; None takes the chat's.
        """
        return self.answer(self._question(question).id, sampling=sampling)

    def _question(self, question: str) -> Node:
        """Add a question at the end of the branch that is shown."""
        if self._starts_branch:
            self._move_to_root()
        if self.tree.current is None and self.system:
            self.recorder.store_node(self.tree.write(Role.SYSTEM, self.system), question, self.sampling)
        node = self.tree.write(Role.USER, question)
        self.recorder.store_node(node, question, self.sampling)
        return node

    def rewrite(self, node: str, question: str) -> Turn:
        """Add a changed question as a sibling of a question, and an answer to it."""
        made = self.tree.rewrite(node, question)
        self.recorder.store_node(made, question, self.sampling)
        return self.answer(made.id)

    def answer(
        self,
        question: str,
        prefix: ev.AssistantPrefix | None = None,
        origin: Origin | None = None,
        sampling: Sampling | None = None,
    ) -> Turn:
        """Add an answer to a question; older answers stay as siblings."""
        source = self.tree[origin.node] if origin is not None and prefix is not None else None
        used = self._settings(question, source, sampling)
        messages = self._messages(question)
        node = self.tree.answer(question, self.info.name if self.info else self.model, used, origin)
        if prefix is not None and prefix.written is None:
            node.steps += prefix.drawn
        asked = self._clock()
        request = ev.Reply(
            messages,
            used,
            self._next(),
            prefix=prefix,
            saved=self.recorder.saved,
            recorder=self.recorder.record(node),
            asked=asked,
            kv_location=self.recorder.kv_location,
            cuts=self.cuts(question) if self.when_full is OverflowPolicy.SLIDE else (),
        )
        self.show()
        assert self.last is not None
        self.last.answer = Answer(node, asked)
        self.last.request = request
        return self.last

    def _settings(self, question: str, source: Node | None, sampling: Sampling | None = None) -> Sampling:
        """The settings of one more answer. source: the answer with whose tokens it begins."""
        used = sampling or with_seed(self.sampling, len(self.tree.children(question)))
        before = None if source is None else source.sampling
        think, budget = self._thinking_of(used if before is None else replace(used, think=before.think))
        if (think, budget) != used.thinking:  # the prompt before given tokens stays as it was
            used = replace(used, think=think, thinking_budget=budget)
        return used

    def cuts(self, question: str) -> tuple[int, ...]:
        """The indices at which the messages for a question may begin: its own and earlier questions."""
        read = self.reads(question)
        return tuple(place for place, node in enumerate(read) if node.role is Role.USER)

    def again(self, *, alone: bool) -> Turn:
        """Ask the newest question, which did not fit, with fewer turns before it or alone."""
        turn = self.turns[-1]
        assert turn.request is not None
        if alone:
            self._start(turn.asked, turn.asked)
        turn.request = replace(
            turn.request,
            serial=self._next(),
            messages=self._messages(turn.asked),
            cuts=self.cuts(turn.asked),
            asked=self._clock(),  # the time that the user took to decide is not the model's
        )
        turn.answer.asked = turn.request.asked
        return turn

    def renew(self, turn: Turn, before: Sampling) -> None:
        """Apply changed settings to an answer that has not begun. before: the settings when it was asked."""
        if turn.request is None or turn.request.prefix is not None:
            return
        changed = {name: getattr(self.sampling, name) for name in SETTINGS}
        changed = {name: value for name, value in changed.items() if value != getattr(before, name)}
        used = replace(turn.request.sampling, **changed)
        think, budget = self._thinking_of(used)
        turn.answer.node.sampling = used = replace(used, think=think, thinking_budget=budget)
        turn.request = replace(turn.request, sampling=used)

    def count(self, draft: str) -> ev.Count:
        """A request for the size of the prompt with this draft."""
        return ev.Count(self.messages(draft), self._next(), self.thinking)

    def encode(self, texts: tuple[str, ...]) -> ev.Encode:
        """A request for the tokens of texts."""
        return ev.Encode(texts, self._next())

    def preview(self, node: str, prefix: ev.AssistantPrefix) -> ev.Preview:
        """A request for a preview of another continuation of an answer."""
        messages, thinking = self.asked(node)
        return ev.Preview(messages, prefix, self._next(), thinking=thinking)

    def asked(self, node: str) -> tuple[tuple[Message, ...], Thinking]:
        """What the model read before an answer."""
        question, used = self.tree[node].parent, self.tree[node].sampling or self.sampling
        assert question is not None
        return self._messages(question), self._thinking_of(used)

    def await_model(self, model: str) -> None:
        """Record that another model is being loaded."""
        self.coming = model
        self.draft_tokens = None

    def stop(self) -> Turn | None:
        """Mark the running answer as stopping; None when none runs or it is stopping already."""
        turn = self.last
        if turn is None or not turn.answer.live or turn.answer.stopping:
            return None
        turn.answer.stopping = True
        return turn

    def withdraw(self) -> Turn:
        """Remove the newest turn, which was never answered; other answers to its question stay."""
        turn = self.turns[-1]
        assert turn.node is not None
        alone = len(self.tree.siblings(turn.node)) == 1
        self.recorder.remove(self.tree.remove(turn.asked if alone else turn.node))
        if self.empty:
            self.clear()
        self.show()
        return turn

    def show(self) -> None:
        """Set the turns to those of the current path."""
        kept = {turn.node: turn for turn in self.turns if turn.node}
        self.turns = []
        for node in self.tree.path():
            if node.role is Role.USER:
                self.turns.append(Turn(node, Answer.missing(node.id)))
            elif node.role is Role.ASSISTANT and self.turns:
                if node.id in kept:
                    self.turns[-1] = kept[node.id]
                else:
                    self.turns[-1].answer = Answer(node)
        self.draft_tokens = None

    def go(self, node: str) -> None:
        """Show the branch that contains a node."""
        self.end_stepping()
        self.tree.go(node)
        self.recorder.point(self.tree.current)
        self._keep_system()
        self.show()

    def clear(self) -> None:
        """Begin a new chat; a chat that has become empty is deleted from the store."""
        self.end_stepping()
        if self.empty and self.recorder.title:
            self.recorder.drop()
        else:
            self.recorder.begin()
        self.tree = ConversationTree()
        self.turns.clear()
        self._sourced = self._of_new
        self.system, self._starts_branch = self._system_of_new, False
        self.draft_tokens = None

    def open(self, chat: Chat, given: Collection[str] = ()) -> None:
        """Show a stored chat, with its sampling. given: names of settings that stay as at the start."""
        self.end_stepping()
        self.recorder.begin(chat.id, chat.title)
        self.tree = chat.tree
        kept = {name: getattr(self._of_new.sampling, name) for name in given}
        self._sourced = self._of_new
        if chat.sampling is not None:
            names = frozenset(SETTINGS) - frozenset(given)
            self._sourced = self._of_new.changed(replace(chat.sampling, **kept), names=names)
        self.turns.clear()
        self._keep_system()
        self.show()

    def _keep_system(self) -> None:
        """The next question on the branch that is shown has the system prompt of that branch."""
        self._starts_branch = False
        if self.tree.nodes:
            self.system = self.system_of_path()

    # --- what the inference thread reports ---

    def apply(self, event: ev.EngineEvent) -> bool:
        """Apply one event. Returns False if it belongs to a request that is no longer current."""
        match event:
            case ev.ModelLoaded(info):
                self.info, self.load_error, self.coming = info, None, ""
                self.notes.clear()
                self._of_new = self._of_new.with_own(info.recommended(self._of_new.sampling))
                self.restore_sampling(self._sourced.with_own(info.recommended(self.sampling)))
            case ev.LoadFailed(error, kept):
                self.coming = ""
                if not kept:
                    self.info, self.load_error = None, error
            case ev.PromptCounted(serial, tokens, alone, unread, seconds):
                if serial != self._serial or tokens < 0:
                    return False
                self.draft_tokens, self.draft_alone = tokens, alone
                self.draft_unread, self.draft_seconds = unread, seconds
            case ev.Notice(text):
                self.notes.append(text)
            case ev.ReadSoFar(done, total):
                self.read_ahead = (done, total) if done < total else None
                self._count_down(done)
            case ev.PreviewReady() | ev.TextsEncoded():
                return True
            case _:
                turn = self.last
                if turn is None or turn.request is None or turn.request.serial != event.serial:
                    return False
                self._progress(turn, event)
        return True

    def _count_down(self, done: int) -> None:
        """The first `done` tokens of what will be sent are read now: less is left for later."""
        if self.draft_tokens is None or self.draft_seconds is None or not self.draft_unread:
            return
        left = min(self.draft_unread, max(0, self.draft_tokens - done))
        self.draft_seconds *= left / self.draft_unread
        self.draft_unread = left

    def _progress(self, turn: Turn, event: ev.EngineEvent) -> None:
        answer, node = turn.answer, turn.answer.node
        match event:
            case ev.Started(_, prompt_tokens):
                answer.started = True
                node.prompt_tokens = prompt_tokens
                node.model = self.info.name if self.info else node.model  # it was asked before it was loaded
            case ev.ContextTruncated(_, cut):
                self.truncate(turn.asked, cut)
            case ev.Prefilled(_, done, total, at):
                answer.record_prefill(done, total, at)
            case ev.PrefixAccepted(_, steps):
                node.steps.clear()
                self.tree.add_prefix(node.id, steps)
            case ev.TokenGenerated(_, step, at):
                answer.record_token(at, thinks=step.channel != "answer")
                self.tree.add(node.id, step)
            case ev.Finished(_, reason, kv_bytes):
                answer.kv_bytes = kv_bytes
                self._end(answer, NodeState.STOPPED if reason == "cancelled" else NodeState.DONE, reason)
                self.draft_tokens = node.prompt_tokens + len(node.steps) if node.in_context else None
                self.draft_seconds = None
                self.draft_alone = False
            case ev.Failed(_, error):
                answer.error = error
                self._end(answer, NodeState.FAILED)

    def _end(self, answer: Answer, state: NodeState, reason: FinishReason | None = None) -> None:
        node = answer.node
        if not answer.started:
            node.steps.clear()  # the model never read what the answer was to begin with
        self.tree.end(node.id, state, reason, "" if answer.error is None else str(answer.error))
        node.first_after, node.ended_after = answer.time_to_first_token, answer.seconds or None
        node.thought_seconds = None if answer.thought is None else answer.thought.seconds

    def _next(self) -> int:
        self._serial += 1
        return self._serial
