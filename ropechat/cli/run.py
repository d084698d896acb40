"""`ropechat run`: answer one question; text to stdout, statistics to stderr."""

import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ropechat.cli.common import (
    STREAM,
    FileName,
    StdoutWriter,
    complete_chat,
    fail_below_option,
    logit_bias_option,
    model_options,
    sampling_options,
    setting_option,
    sourced_sampling,
    speculative_options,
    stdin_waits,
    template_options,
    text_argument,
)
from ropechat.cli.exit_codes import CHECK_FAILED, IO_FAILED, OK, say
from ropechat.cli.grammar_options import grammar_of, grammar_options
from ropechat.cli.loading import load, take_model, take_name
from ropechat.cli.option_groups import GroupedCommand, Rule, check_rules, option, option_set
from ropechat.cli.run_stored import wanted_chat
from ropechat.cli.stages import check_trace_target, write_trace
from ropechat.cli.status import ProgressLine, progress_option
from ropechat.errors import RequestError
from ropechat.settings.spec import WHEN_FULL
from ropechat.util.progress import Progress
from ropechat.util.records import finite
from ropechat.util.text import count_of, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ropechat.conversation import Message
    from ropechat.engine.engine import Engine
    from ropechat.inspector.draws import RecordedDraws
    from ropechat.inspector.unsure import Unsure
    from ropechat.sampling import Sampling
    from ropechat.sampling.grammar import Grammar
    from ropechat.trace import Step

_TRACE_CANDIDATES = 20


class Timing:
    """Times of a run, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.first: float | None = None
        self.last: float | None = None
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None
        self.steps: list[Step] = []

    def on_prefill(self, done: int, total: int) -> None:
        self.prompt_tokens = total
        if self.cached_tokens is None:  # reported before anything is computed
            self.cached_tokens = done

    def take(self, step: "Step") -> None:
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last
        self.steps.append(step)

    @property
    def drafted(self) -> int:
        """Tokens that were accepted drafts of speculative decoding."""
        return sum(step.drafted for step in self.steps)

    @property
    def thinking(self) -> bool:
        """Whether the newest token belongs to a thought."""
        return bool(self.steps) and self.steps[-1].channel != "answer"

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thought, with those around it."""
        return sum(step.channel != "answer" for step in self.steps)

    def seconds(self) -> dict[str, float | None]:
        """Time to first token, total time, and tokens per second of prefill and decode."""
        if self.first is None or self.last is None:
            return {"ttft_s": None, "total_s": None, "prefill_tok_s": None, "decode_tok_s": None}
        ttft, decode = self.first - self.begun, self.last - self.first
        rest = len(self.steps) - 1
        return {
            "ttft_s": ttft,
            "total_s": self.last - self.begun,
            "prefill_tok_s": self.prompt_tokens / ttft if ttft > 0 else None,
            "decode_tok_s": rest / decode if rest > 0 and decode > 0 else None,
        }


def statistics(timing: Timing) -> str:
    """The line of statistics for stderr."""
    seconds = timing.seconds()
    reason = timing.steps[-1].finish_reason if timing.steps else "cancelled"

    def rate(name: str) -> str:
        value = seconds[name]
        return "–" if value is None else f"{value:.1f} tok/s"

    ttft = seconds["ttft_s"]
    first = "–" if ttft is None else format_seconds(ttft)
    drafted = f" ({timing.drafted} drafted)" if timing.drafted else ""
    thought = f" ({timing.reasoning_tokens:,} of a thought)" if timing.reasoning_tokens else ""
    reply = f"reply {count_of(len(timing.steps), 'token')}{thought}{drafted}, {rate('decode_tok_s')}"
    return (
        f"prompt {count_of(timing.prompt_tokens, 'token')}, {rate('prefill_tok_s')} · "
        f"{reply} · first token {first} · {reason or 'cut'}"
    )


def record(
    timing: Timing, model: str, text: str, grammar: "Grammar | None", seed: int | None
) -> dict[str, Any]:
    """The object of --json. grammar: what the text had to match. seed: what `--seed` must be to repeat it."""
    steps = [step for step in timing.steps if step.channel == "answer"]
    thought = [step for step in timing.steps if step.channel != "answer"]
    return {
        "model": model,
        "text": text,
        **({"reasoning": "".join(step.reasoning for step in thought)} if thought else {}),
        **({} if grammar is None or not grammar.is_json else {"parsed": grammar.parse(text)}),
        "ids": [step.id for step in steps],
        "logprobs": [finite(step.logprob) for step in steps],
        **(
            {
                "reasoning_ids": [step.id for step in thought],
                "reasoning_logprobs": [finite(step.logprob) for step in thought],
            }
            if thought
            else {}
        ),
        "finish_reason": timing.steps[-1].finish_reason if timing.steps else None,
        "seed": seed,
        "usage": {
            "prompt_tokens": timing.prompt_tokens,
            "cached_tokens": timing.cached_tokens or 0,
            "completion_tokens": len(timing.steps),
            **({"reasoning_tokens": len(thought)} if thought else {}),
        },
        "timings": {**timing.seconds(), "drafted_tokens": timing.drafted},
    }


def _of_trace(trace: "RecordedDraws", bytes_of: "Callable[[int], bytes]") -> dict[str, Any]:
    """Each token's candidates and stages, as in a trace."""
    from ropechat.inspector.records import token_record

    return {"tokens": [token_record(token, bytes_of) for token in trace]}


def begin(
    engine: "Engine",
    prompt: str,
    system: str | None,
    raw: bool,
    sampling: "Sampling",
    timing: Timing,
    candidates: int = 0,
) -> "Iterator[Step]":
    """Start the reply; with --raw the prompt is continued as it is."""

    if raw:
        return engine.generate(
            (system or "") + prompt, sampling, top_k=candidates, on_prefill=timing.on_prefill
        )
    messages = _messages(prompt, system)
    return engine.reply(messages, sampling, top_k=candidates, on_prefill=timing.on_prefill)


def _messages(prompt: str, system: str | None) -> "list[Message]":
    from ropechat.conversation import Message, Role  # imported here: not needed with --raw

    messages = [Message(Role.SYSTEM, system)] if system is not None else []
    return [*messages, Message(Role.USER, prompt)]


def prompt_of(words: "Sequence[str]") -> str:
    """The words as one text; a dash among them is the text of stdin, as a separate paragraph."""
    if len(words) < 2:
        return text_argument(words[0] if words else None, "prompt")
    if words.count(STREAM) > 1:
        raise click.UsageError("prompt: - must be given at most once")
    at = words.index(STREAM) if STREAM in words else len(words)
    parts = [" ".join(words[:at]), *([text_argument(STREAM, "prompt")] if STREAM in words else [])]
    return "\n\n".join(part for part in [*parts, " ".join(words[at + 1 :])] if part)


def _watched(
    line: ProgressLine,
    engine: "Engine",
    steps: "Iterator[Step]",
    timing: Timing,
    sampling: "Sampling",
    *,
    shown: "Callable[[Step], object] | None",
) -> "Iterator[Step]":
    """The steps, and how far they are. shown: whether a step puts text on the terminal; None: none does."""
    budget = None if sampling.thinking_budget < 0 else sampling.thinking_budget

    def think() -> Progress | None:
        done = timing.reasoning_tokens
        return engine.progress.read() or (Progress("thinking", done, budget) if timing.thinking else None)

    def read() -> Progress | None:
        made = len(timing.steps) - timing.reasoning_tokens
        return think() or Progress("writing", made, sampling.max_tokens)

    if shown is not None and line.mode == "line":
        yield from line.until_first(think, steps, shown)
    else:
        with line.watch(read):
            yield from steps


def _answer_only(step: "Step") -> str:
    return step.text


def _with_thought(step: "Step") -> str:
    return step.reasoning + step.text


def _with_seed(sampling: "Sampling") -> "Sampling":
    """The settings with the seed that will be used, so that it can be recorded."""
    from ropechat.engine.validation import choose_seed

    return replace(sampling, seed=choose_seed(sampling))


def _certainty(
    engine: "Engine", asked: "str | Sequence[Message]", timing: Timing, sampling: "Sampling"
) -> dict[str, Any]:
    """How sure the answer is that had to match a grammar. asked: a text that was continued, or messages."""
    from ropechat.engine.certainty import Answer

    if isinstance(asked, str):
        ids = engine.tokenizer.encode(asked)
    else:
        ids = engine.prompt_ids(asked, None, sampling.thinking)
    thought = [step.id for step in timing.steps if step.channel != "answer"]
    assert sampling.grammar is not None
    return engine.certainty([*ids, *thought], Answer.of_steps(timing.steps), sampling.grammar)


def _unsure(engine: "Engine", steps: "list[Step]", certainty: dict[str, Any], below: float) -> "list[Unsure]":
    """The parts of the answer, without a thought, with a smaller probability."""
    from ropechat.engine.certainty import Answer
    from ropechat.inspector.unsure import unsure_parts

    return unsure_parts(Answer.of_steps(steps), certainty, below, engine.token_bytes, engine.stop_ids)


def _recorded(
    engine: "Engine", steps: "list[Step]", sampling: "Sampling", candidates: int
) -> "RecordedDraws":
    from ropechat.inspector.draws import recorded_draws

    return recorded_draws(steps, sampling, engine.trace_facts(candidates))


_EXAMPLES = """
  ropechat "Why is the sky blue?"
  ropechat -c "And at dusk?"
  ropechat run smollm2:135m "Once upon a time" --max-tokens 20
  ropechat run "Summarize this text:" - < notes.txt
  ropechat run "Once upon a time" --max-tokens 5 --json --candidates 3
  ropechat run "Invent a person" --json-schema person.json --json | jq .parsed
  ropechat run "Is water wet?" --choices yes,no
  ropechat run "Which city is the capital of Italy?" --fail-below 0.01
  ropechat run "Once upon a time" --trace t.jsonl --max-tokens 9
  ropechat inspect --open t.jsonl --replay
"""
_prompt_options = option_set(
    option("--system", metavar="TEXT", help="A system message before the prompt."),
    option("--raw", is_flag=True, help="Use no chat template: continue the prompt as it is."),
    title="Prompt",
)
_output_options = option_set(
    option("--json", "as_json", is_flag=True, help="Write one JSON object at the end instead of text."),
    option("--show-thinking", is_flag=True, help="Write what the model thinks before its answer, too."),
    option("--quiet", is_flag=True, help="Write no notes, progress and statistics to stderr."),
    progress_option,
    option(
        "--trace",
        "trace_file",
        type=FileName(),
        metavar="FILE.jsonl",
        help="Write each token's candidates, sampler stages and random number to a file, which is replaced "
        "if it exists; - writes them to stdout instead of the text.",
    ),
    option(
        "--candidates",
        type=click.IntRange(0, 1000),
        metavar="N",
        help="Candidates of each token in --trace and --json "
        f"[default: {_TRACE_CANDIDATES} with --trace, else 0].",
    ),
    fail_below_option,
    title="Output",
)
_chat_options = option_set(
    option("-c", "--continue", "newest", is_flag=True, help="Ask in the newest stored chat."),
    option(
        "--resume",
        metavar="ID",
        shell_complete=complete_chat,
        help="Ask in a stored chat (see `ropechat chats list`).",
    ),
    setting_option(
        "store",
        "--store/--incognito",
        default=True,
        help="Store question and answer with the chats [default: if stdout is a terminal, or with -c].",
    ),
    setting_option(
        "when_full",
        type=click.Choice(WHEN_FULL),
        default="ask",
        expert=True,
        help="With -c: slide leaves out the oldest questions if a chat exceeds the context.",
    ),
    title="Chats",
)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("words", metavar="[MODEL] PROMPT...", nargs=-1)
@_prompt_options
@_output_options
@_chat_options
@grammar_options
@template_options
@sampling_options
@logit_bias_option
@model_options
@speculative_options
def run(
    words: tuple[str, ...],
    system: str | None,
    raw: bool,
    as_json: bool,
    show_thinking: bool,
    progress: str,
    quiet: bool,
    trace_file: "Path | str | None",
    candidates: int | None,
    fail_below: float | None,
    newest: bool,
    resume: str | None,
    store: bool,
    when_full: str,
    **given: Any,
) -> int:
    """Answer PROMPT and write the text to stdout; - is stdin, and so is no PROMPT.

    A question at a terminal is stored with the chats, so that -c can continue it, and answered by the model
    that the chat opened last. In a script or a pipe nothing is stored, unless --store or -c is given, and
    the model is the built-in one, unless -m, the environment or the settings name another. A first word that
    is a name of the catalog with its size, such as qwen3:0.6b, names the model, too, unless -m is given.

    The exit code is 1 if --fail-below found a word.
    """
    check_rules(
        Rule("json_flexible", requires="json_schema"), Rule("candidates", requires="as_json trace_file")
    )
    grammar = grammar_of(given)
    sourced = sourced_sampling(given)
    check_trace_target(trace_file)
    if candidates is None:
        candidates = 0 if trace_file is None else _TRACE_CANDIDATES
    if trace_file is not None and candidates == 0:
        raise click.UsageError("--candidates: must be at least 1 with --trace (got 0)")
    words = take_name(given, words)
    model = take_model(given, raw=raw, follows_last=sys.stdout is not None and sys.stdout.isatty())
    stored = wanted_chat(newest, resume, store, raw, system)
    text = prompt_of(words)
    if not (text or raw):
        raise RequestError("prompt: must have at least one character")
    line = ProgressLine("none" if quiet else progress)
    with ExitStack() as exits:
        chat = exits.enter_context(stored.opened()) if stored is not None else None
        if chat is not None:
            model = chat.choose_model(model, quiet=quiet)
        if model.note and not quiet:
            say(f"note: {model.note}")
        engine = load(model.find(), quiet=quiet, first_prompt=text, grammar=grammar, line=line)
        sourced = sourced.with_own(engine.recommended(sourced.sampling.think))
        sampling = replace(sourced.sampling, grammar=grammar)
        timing, out, pieces = Timing(), StdoutWriter(), []
        streams = not as_json and trace_file != STREAM
        recorded = max(1, candidates) if grammar is not None else candidates
        steps: Iterator[Step]
        if chat is not None:
            question = chat.ask(engine.name, text, sampling, system, when_full)
            sourced = sourced._replace(sampling=sampling).changed(question.sampling)
            sampling = question.sampling
            # Closed before the store: after a signal, that writes the end of the answer.
            steps = exits.enter_context(closing(question.answer(engine, recorded, timing.on_prefill)))
        else:
            sampling = _with_seed(sampling) if candidates or as_json else sampling
            steps = begin(engine, text, system, raw, sampling, timing, recorded)
        said = _with_thought if show_thinking else _answer_only
        shown = said if streams and out.is_terminal else None
        try:
            for step in _watched(line, engine, steps, timing, sampling, shown=shown):
                if streams and show_thinking and timing.thinking and step.channel == "answer":
                    out.end_line()
                    out.write("\n")
                timing.take(step)
                pieces.append(step.text)
                if streams:
                    out.write(said(step))
        finally:
            if streams and pieces:
                out.end_line()
            trace = _recorded(engine, timing.steps, sampling, candidates) if candidates else None
            if trace is not None and trace_file is not None:
                write_trace(trace_file, trace, engine.token_bytes)
    certainty: dict[str, Any] = {}
    unsure: list[Unsure] = []
    if grammar is not None and (as_json or fail_below is not None):
        messages = _messages(text, system) if chat is None else question.messages
        certainty = _certainty(engine, (system or "") + text if raw else messages, timing, sampling)
    if fail_below is not None:
        unsure = _unsure(engine, timing.steps, certainty, fail_below)
    if as_json and trace_file != STREAM:
        import json

        from ropechat.inspector.stages import settings_record

        found = record(timing, engine.name, "".join(pieces), grammar, sampling.seed)
        found |= {**settings_record(sampling), "sampling_from": sourced.table()}
        found |= certainty
        if trace is not None:
            found |= _of_trace(trace, engine.token_bytes)
        if fail_below is not None:
            found |= {"unsure": [part.record for part in unsure]}
        out.write(json.dumps(found, allow_nan=False) + "\n")
    if not quiet:
        if words and STREAM not in words and stdin_waits():
            say("note: stdin was not read; - after the prompt adds its text")
        if chat is not None and (count := question.left_out):
            asked = "question is" if count == 1 else f"{count:,} questions are"
            say(f"note: the chat exceeds the context: its oldest {asked} no longer sent to the model")
        for note in (*engine.facts["notes"], sourced.line(), statistics(timing)):
            say(note)
        if grammar is not None and timing.steps and timing.steps[-1].finish_reason != "stop":
            say(f"note: the answer was truncated before it matched the {grammar.name} as a whole")
        if timing.thinking:
            say("note: the answer ended inside the thought; --think N limits it, --think off skips it")
    for part in unsure:
        say(f"unsure: {part.line}")
    if chat is not None and chat.lost:
        return IO_FAILED
    return CHECK_FAILED if unsure else OK
