"""`ropechat serve`: the chat in a browser."""

import os
import shlex
import sys

import click

from ropechat.cli.chat import chat
from ropechat.cli.common import read_user_settings, sampling_of
from ropechat.cli.config import checked_keys
from ropechat.cli.exit_codes import say
from ropechat.cli.listening import is_loopback
from ropechat.cli.loading import take_model
from ropechat.cli.option_groups import GroupedCommand, option, option_set
from ropechat.errors import RequestError

INSTALL = "textual-serve is not installed; pip install 'ropechat[serve]'"


_EXAMPLES = """
  ropechat serve
  ropechat serve --port 9000 -m smollm2:135m --incognito
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, context_settings={"ignore_unknown_options": True})
@option_set(
    option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    option(
        "--port",
        type=click.IntRange(1, 65535),
        metavar="N",
        default=8000,
        show_default=True,
        help="Port to listen on.",
    ),
    option("--expose", is_flag=True, help="Allow a HOST that other machines can reach."),
    title="Server",
)
@click.argument("chat_options", nargs=-1, type=click.UNPROCESSED)
def serve(host: str, port: int, expose: bool, chat_options: tuple[str, ...]) -> None:
    """Serve the chat to browsers on this machine; CHAT_OPTIONS are those of `ropechat chat`.

    Each page is a separate chat with its own copy of the model. Everyone who can reach the port, including
    other users of this machine, can chat and can read your stored chats and files. Requires the extra
    `serve`: pip install 'ropechat[serve]'.
    """
    if not is_loopback(host):
        if not expose:
            raise RequestError(
                f"--host: must be a loopback address such as 127.0.0.1 (got {host!r:.60}); or add --expose"
            )
        say(f"warning: --host {host}: anyone on the network can chat and read your chats and files")
    try:
        from ropechat.cli.web_server import WebServer
    except ImportError:
        raise RequestError(INSTALL) from None
    _prepare(chat_options)
    command = [sys.executable, "-c", "from ropechat.cli import entry; entry()"]
    server = WebServer(shlex.join([*command, "chat", *chat_options]), host, port, exposed=expose)
    os.environ["COLORTERM"] = "truecolor"  # the browser draws the chat, not this terminal
    say(f"{server.public_url}  (Ctrl-C to stop)")
    server.serve()


def _prepare(chat_options: tuple[str, ...]) -> None:
    """Check options and settings and download the model now: a page could not report errors or ask."""
    settings = read_user_settings()
    checked_keys(settings)
    with chat.make_context("chat", list(chat_options), default_map=settings.options(sampling=True)) as made:
        sampling_of(dict(made.params))
        take_model(dict(made.params), follows_last=True).find()
