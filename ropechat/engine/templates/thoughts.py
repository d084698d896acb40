"""How a model that reasons writes its thought: the markers, and what turns thinking on and off.

They are found from the model's chat template: it is rendered with and without a thought, and with thinking on
and off, and the texts are compared. Where that shows nothing, the tags in the template and in the vocabulary
are tried.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

Render = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any], bool], str | None]
"""render(messages, variables, add_generation_prompt): the text, None if the template fails."""

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""The fields of a message in which templates and programs give its thought."""
BLOCKS = "content"
"""In place of one of THOUGHT_FIELDS: the content is a list of a thinking block and a text block (Mistral)."""
EFFORT = "reasoning_effort"
BUDGET = "thinking_budget"
_SWITCHES = ("enable_thinking", "thinking")
_NO_EFFORT = ("none", "no_think", "minimal")
EFFORTS = ("low", "medium", "high")
_HINT = re.compile(r"think|thought|reason|inner_prefix|channel", re.IGNORECASE)
_END_TAG = re.compile(r"</[\w:]*(?:think|thought|reason)[\w:]*>|\[/THINK\]", re.IGNORECASE)
_PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thought>", "</thought>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
)
_QUESTION, _ANSWER, _THOUGHT = "question1st", "answer2nd", "thought3rd"
_RESPONSE = ("<response>", "</response>")


class ThoughtFormat(NamedTuple):
    """The form of a thought.

    start, end: the markers around it. close: what ends a thought, with the space around the marker. skip:
    what a prompt ends with so that the model answers without a thought. answer: what opens an answer that has
    none, "" for most models. key: the field of a message for its thought, one of THOUGHT_FIELDS or BLOCKS;
    None if the template takes none. on, off: variables of the template that turn thinking on and off; empty
    if it has none. has_effort: whether it has the variable `reasoning_effort`. wrapper: tags that the model
    writes around its answer.
    """

    start: str
    end: str
    close: str
    skip: str
    answer: str = ""
    key: str | None = None
    on: Mapping[str, Any] = {}
    off: Mapping[str, Any] = {}
    has_effort: bool = False
    wrapper: tuple[str, str] = ("", "")

    def opening(self, prompt: str) -> str:
        """Where a reply to a prompt begins: in a thought ("open"), behind one ("answer"), or "start"."""
        text = prompt.rstrip()
        if text.endswith(self.start):
            return "open"
        return "answer" if text.endswith((self.end, *filter(None, [self.answer]))) else "start"


def find_format(source: str, tokens: Collection[str], render: Render) -> ThoughtFormat | None:
    """The form of a model's thoughts; None if it has none.

    source: the chat template. tokens: the names of the tokens that are no ordinary text.
    """
    in_vocabulary = [pair for pair in _PAIRS if pair[1] in tokens]
    if not in_vocabulary and not _HINT.search(source):
        return None
    user = {"role": "user", "content": _QUESTION}
    asked = render([user], {}, True)
    if asked is None:
        return None
    on, off, texts = _switch(source, user, render)
    found = _by_message(source, user, asked, texts, on, render)
    if found is None:
        found = _by_tags(source, tokens, user, [asked, *texts], in_vocabulary, render)
    if found is None:
        return None
    found = found._replace(on=on, off=off, has_effort=_has_effort(source, user, render))
    shown = " ".join(texts or [asked])
    return found._replace(wrapper=_RESPONSE) if all(tag in shown for tag in _RESPONSE) else found


def _switch(
    source: str, user: Mapping[str, Any], render: Render
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The variables that turn thinking on and off, and the prompts with each."""
    for name in _SWITCHES:
        if re.search(rf"\b{name}\b", source):
            texts = [render([user], {name: value}, True) for value in (True, False)]
            if None not in texts and texts[0] != texts[1]:
                return {name: True}, {name: False}, [text for text in texts if text is not None]
    if EFFORT in source:
        usual, most = render([user], {}, True) or "", render([user], {EFFORT: "high"}, True) or ""
        for value in _NO_EFFORT:
            text = render([user], {EFFORT: value}, True) or ""
            if text and _behind(text) != _behind(most):
                on = {EFFORT: "high"} if _behind(text) == _behind(usual) else {}
                return on, {EFFORT: value}, [most, text]
    if BUDGET in source:
        usual, text = render([user], {}, True) or "", render([user], {BUDGET: 0}, True) or ""
        if text and _behind(text) != _behind(usual):
            return {}, {BUDGET: 0}, [usual, text]
    return {}, {}, []


def _behind(prompt: str) -> str:
    """What a prompt has behind its question."""
    return prompt.rpartition(_QUESTION)[2]


def _has_effort(source: str, user: Mapping[str, Any], render: Render) -> bool:
    if EFFORT not in source:
        return False
    texts = {render([user], {EFFORT: value}, True) for value in EFFORTS}
    return len(texts - {None}) > 1


def _by_message(
    source: str,
    user: Mapping[str, Any],
    asked: str,
    prompts: Sequence[str],
    on: Mapping[str, Any],
    render: Render,
) -> ThoughtFormat | None:
    """The form, from a conversation whose last message has a thought. prompts: as of `_switch`."""
    earlier = [user, {"role": "assistant", "content": "earlier"}, user]  # Kimi K2 drops the first thought
    for key in (*THOUGHT_FIELDS, BLOCKS):
        if not re.search(rf"\b{'thinking' if key == BLOCKS else key}\b", source):
            continue
        said: dict[str, Any] = {"role": "assistant", "content": _ANSWER, key: _THOUGHT}
        if key == BLOCKS:
            said[key] = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _ANSWER}]
        for history in ([user], earlier):
            text = render([*history, said], on, False)
            before, thought, rest = (text or "").partition(_THOUGHT)
            between, answer, _ = rest.partition(_ANSWER)
            if not thought or not answer or not between.strip() or "'" in between:
                continue  # a quote: the template prints the list as it is
            shown = render(history, on, True) or asked
            common = before[: _common_length(shown, before)]
            opens = before[len(common) :]
            start = opens.strip() or shown[len(common) :].strip() or _opened(common, prompts)
            plain = render([*history, {"role": "assistant", "content": _ANSWER}], on, False) or ""
            skip = plain.partition(_ANSWER)[0].removeprefix(common) if plain.startswith(common) else ""
            end = between.strip()
            if start in skip or end in skip:
                only_answer = ""
            else:  # with several messages, as in Harmony, the end marker opens the answer
                only_answer = skip.strip() if skip.strip() and end.endswith(skip.strip()) else ""
                skip = skip if only_answer else opens + between if opens.strip() else between
            return ThoughtFormat(start, end, between, skip, only_answer, key)
    return None


def _opened(prompt: str, prompts: Sequence[str]) -> str:
    """The marker at the end of a prompt that opens a thought: what one that opens an answer has not."""
    start = _last_tag(prompt)
    on, off = [_behind(one) for one in prompts] if len(prompts) == 2 else ("", "")
    if not start or not off.rstrip().endswith(start):
        return start
    same = _common_length(on, off)
    return _last_tag(on[:same]) + on[same:].strip()


def _by_tags(
    source: str,
    tokens: Collection[str],
    user: Mapping[str, Any],
    prompts: Sequence[str],
    in_vocabulary: Sequence[tuple[str, str]],
    render: Render,
) -> ThoughtFormat | None:
    """The form, from tags: at the end of a prompt, removed from earlier answers, or in the vocabulary."""
    answered = render([user, {"role": "assistant", "content": _ANSWER}, user], {}, True) or ""
    of_source = [(end.replace("/", "", 1), end) for end in dict.fromkeys(_END_TAG.findall(source))]
    for start, end in dict.fromkeys([*of_source, *((*in_vocabulary, *_PAIRS))]):
        if end not in source and end not in tokens:
            continue
        told = any(start in prompt and end in prompt for prompt in (*prompts, answered))
        opened = any(prompt.rstrip().endswith(start) for prompt in prompts)
        if told or opened or (start in tokens and end in tokens) or _strips(start, end, user, render):
            skip = next((_skip(prompt, start, end) for prompt in prompts if _skip(prompt, start, end)), "")
            close = _close(skip, start, end)
            return ThoughtFormat(start, end, close, skip or (close if opened else f"{start}\n{close}"))
    return None


def _skip(prompt: str, start: str, end: str) -> str:
    """The empty thought that a prompt ends with, or ""."""
    at = prompt.rfind(start)
    empty = prompt[at:] if at >= 0 else ""
    return empty if empty.strip().endswith(end) and len(empty.split()) <= 2 else ""


def _close(skip: str, start: str, end: str) -> str:
    """What ends a thought, with the space around the marker as in the template's empty thought, if any."""
    inside, _, behind = skip.removeprefix(start).rpartition(end)
    if not skip:
        return f"\n{end}\n\n"
    return f"\n{end}{behind}" if inside else f"{end}{behind}"


def _strips(start: str, end: str, user: Mapping[str, Any], render: Render) -> bool:
    """Whether the template takes a thought with these tags out of an earlier answer."""
    said = {"role": "assistant", "content": f"{start}{_THOUGHT}{end}{_ANSWER}"}
    text = render([user, said, user], {}, True)
    return text is not None and _ANSWER in text and _THOUGHT not in text


def _common_length(left: str, right: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )


def _last_tag(text: str) -> str:
    """The tag that a text ends with."""
    end = text.rstrip()
    at = max(end.rfind("<"), end.rfind("["))
    return end[at:] if at >= 0 else ""
