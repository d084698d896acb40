"""`ropechat template`: the prompt that a model's chat template renders from messages."""

import json
from pathlib import Path
from typing import IO, Any

import click

from ropechat.cli.common import (
    STREAM,
    StdoutWriter,
    complete_model,
    messages_option,
    setting_option,
    stdin_stream,
    template_options,
)
from ropechat.cli.exit_codes import say
from ropechat.cli.loading import opening_of, unused_variables
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.conversation import Message, Role
from ropechat.errors import ChatTemplateError, FileAccessError, RequestError
from ropechat.util.text import format_bytes

_MAX_FILE_BYTES = 64 << 20
_GREETING = "Hello!"


def _content(file: str) -> bytes:
    def read(stream: IO[bytes]) -> bytes:
        data = stream.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise RequestError(f"{file}: must be at most {format_bytes(_MAX_FILE_BYTES)}")
        return data

    if file == STREAM:
        return read(stdin_stream())
    try:
        with Path(file).open("rb") as stream:
            return read(stream)
    except FileNotFoundError:
        raise RequestError(f"{file}: file not found") from None
    except OSError as error:
        raise FileAccessError(f"{file}: {error.strerror}") from None


def read_messages(file: str) -> list[Message]:
    """Read the messages of a JSON file: a list, or an object with `messages`. Raises RequestError."""
    from ropechat.batch.line import LineError, parse_request

    content = _content(file)
    file = "stdin" if file == STREAM else file
    try:
        value = json.loads(content.decode("utf-8-sig"))
        found = parse_request({"messages": value["messages"] if isinstance(value, dict) else value}).content
    except KeyError:
        raise RequestError(f"{file}: must be a list of messages, or an object with messages") from None
    except LineError as error:
        raise RequestError(f"{file}: {error}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{file}: must be UTF-8 (byte {error.start} is not)") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{file}: not valid JSON ({error}); must be a list of messages") from None
    return [message for message in found if isinstance(message, Message)]


def _conversation(system: str | None, user: str | None, file: str | None) -> list[Message]:
    messages = read_messages(file) if file is not None else []
    if system is not None:
        messages.insert(0, Message(Role.SYSTEM, system))
    if user is not None or not messages or messages[-1].role is Role.SYSTEM:
        messages.append(Message(Role.USER, _GREETING if user is None else user))
    return messages


_EXAMPLES = """
  ropechat template
  ropechat template -m smollm2:135m --system "Be brief." --user "What is RoPE?"
  ropechat template --source
  ropechat template | ropechat inspect --special tokens
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("directory", required=False, metavar="[MODEL]", shell_complete=complete_model)
@option_set(
    option("--user", metavar="TEXT", help=f"A user message at the end [default: {_GREETING}]."),
    option("--system", metavar="TEXT", help="A system message at the beginning."),
    messages_option,
    option(
        "--no-generation-prompt",
        is_flag=True,
        help="End after the last message, not with what the model's answer begins with.",
    ),
    title="Messages",
)
@option_set(
    option("--source", is_flag=True, help="Print the template itself."),
    option("--list", "as_list", is_flag=True, help="Print the names of the model's templates."),
    setting_option(
        "model",
        "-m",
        "--model",
        shell_complete=complete_model,
        help="Folder, .gguf file, Hub id or builtin [env: ROPECHAT_MODEL; default: builtin].",
    ),
    title="Template",
)
@template_options
def template(
    directory: str | None,
    model: str | None,
    user: str | None,
    system: str | None,
    messages: str | None,
    no_generation_prompt: bool,
    source: bool,
    as_list: bool,
    template: str | None,
    template_vars: dict[str, Any],
) -> None:
    """Show the prompt that a model's chat template renders from messages.

    The tokenizer may add a BOS token that is not in this text.
    """
    from ropechat.engine.loading import load_template
    from ropechat.engine.templates.template import SYSTEM_FOLDED

    name, out = opening_of(directory or model)[0], StdoutWriter()
    found = load_template(name)
    if found is None:
        raise ChatTemplateError(
            f"{name}: chat_template: this model has none; it continues text, as with --raw"
        )
    if as_list:
        out.write("".join(f"{name}\n" for name in found.names))
        return
    if template is not None:
        found = found.select(template)
    if source:
        out.write(found.source)
        out.end_line()
        return
    for note in unused_variables(found, template_vars):
        say(note)
    conversation = _conversation(system, user, messages)
    out.write(found.prompt(conversation, template_vars, add_generation_prompt=not no_generation_prompt))
    if found.folds_system:
        say(f"note: {SYSTEM_FOLDED}")
    if out.is_terminal:
        out.end_line()
