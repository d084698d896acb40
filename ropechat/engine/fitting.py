"""Shortening a prompt that is longer than the context has room for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ropechat.conversation import Message, Role
from ropechat.engine.scheduler import Job
from ropechat.errors import RopechatError
from ropechat.tokenizer import Tokenizer

Side = Literal["start", "end"]
_TRIES = 8


def fitted(
    job: Job, room: int, side: Side, encode: Callable[[Job], list[int]], tokenizer: Tokenizer
) -> tuple[Job, int]:
    """A job whose prompt has at most `room` tokens, and how many characters were cut for that.

    Cut is the start or the end of its longest text: of the prompt, or of the longest user message. Ids, and a
    prompt that is too long without that text, stay as they are. encode: the ids of a job.
    """
    whole = _longest(job)
    if whole is None:
        return job, 0
    text, found, margin = whole, job, 0
    try:
        for _ in range(_TRIES):
            over = len(encode(found)) - room
            if over <= 0:
                return found, len(whole) - len(text)
            tokens = tokenizer.encode_aligned(text)
            spans = [token.span for token in tokens if token.span[0] < token.span[1]]
            kept = len(spans) - over - margin
            if kept < 1:
                break
            data = text.encode()
            data = data[: spans[kept - 1][1]] if side == "end" else data[spans[-kept][0] :]
            text = data.decode("utf-8", "ignore")
            found, margin = _with_text(job, whole, text), 2 * margin + 1
    except RopechatError:  # the engine says what is wrong with the prompt
        pass
    return job, 0


def _longest(job: Job) -> str | None:
    if isinstance(job.prompt, str):
        return job.prompt
    if isinstance(job.prompt, RopechatError):
        return None
    texts = [part.content for part in job.prompt if isinstance(part, Message) and part.role is Role.USER]
    return max(texts, key=len, default=None)


def _with_text(job: Job, old: str, new: str) -> Job:
    """The job with another text in the place of its longest one."""
    if isinstance(job.prompt, str):
        return replace(job, prompt=new)
    assert not isinstance(job.prompt, RopechatError)
    parts = list(job.prompt)
    place = next(
        place
        for place, part in enumerate(parts)
        if isinstance(part, Message) and part.role is Role.USER and part.content == old
    )
    parts[place] = replace(parts[place], content=new)  # type: ignore[type-var]
    return replace(job, prompt=parts)  # type: ignore[arg-type]
