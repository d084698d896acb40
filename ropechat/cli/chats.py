"""`ropechat chats`: the stored conversations."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropechat.cli.common import (
    STREAM,
    FileName,
    StdoutWriter,
    complete_chat,
    model_folders,
    overwrite_option,
    refuse_existing,
    stdin_stream,
)
from ropechat.cli.exit_codes import OK, SOME_FAILED, say
from ropechat.cli.option_groups import CommandGroup, option
from ropechat.util.records import finite
from ropechat.util.text import local_time, one_line
from ropechat.util.width import fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropechat.store.queries import Summary
    from ropechat.store.store import Store


_EXAMPLES = """
  ropechat chats list
  ropechat chats search rotary
  ropechat chats export 3f2a -o chat.html --format html
  ropechat chat --resume 3f2a
"""


@contextmanager
def opened() -> "Iterator[Store]":
    """Open the store, print its notices to stderr, and close it."""
    from ropechat.store.store import Store
    from ropechat.util.paths import conversations_folder

    store = Store(conversations_folder())
    try:
        yield store
        for notice in store.notices:
            say(f"warning: {notice}")
    finally:
        store.close(10.0)


def _print(summaries: "list[Summary]", as_json: bool) -> None:
    out = StdoutWriter()
    room = max(20, shutil.get_terminal_size((100, 24)).columns - 34)  # a line is a conversation
    for one in summaries:
        if as_json:
            record = {key: getattr(one, key) for key in one.__dataclass_fields__}
            times = {key: finite(record[key]) for key in ("created", "changed")}
            out.write(json.dumps(record | times, allow_nan=False) + "\n")
        else:
            changed = f"{local_time(one.changed):%Y-%m-%d %H:%M}"
            title = fit(one_line(one.title), room).rstrip()
            snippet = f"\n          {one_line(one.snippet)}" if one.snippet else ""
            out.write(f"{one.id:8}  {changed}  {one.nodes:4}  {title}{snippet}\n")


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def chats() -> None:
    """List, show, search, export, import and delete stored conversations.

    ID is the id of a conversation or a prefix of it. Conversations are stored in ROPECHAT_DATA, or in the
    user's data folder.
    """


_EXPORTS = """
  ropechat chats export 3f2a > chat.md
  ropechat chats export 3f2a -o chat.html --format html
"""
_limit_option = option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=50,
    show_default=True,
    help="List N conversations, at most.",
)
_json_option = option("--json", "as_json", is_flag=True, help="Write one JSON object per conversation.")
_id_argument = click.argument("id", shell_complete=complete_chat)


@chats.command("list", epilog="  ropechat chats list --limit 5")
@_limit_option
@_json_option
def list_(limit: int, as_json: bool) -> None:
    """List the newest conversations: id, time, messages, title."""
    with opened() as store:
        _print(store.conversations(limit).result(), as_json)


@chats.command(epilog="  ropechat chats search rotary embeddings")
@click.argument("words", nargs=-1, required=True)
@_limit_option
@_json_option
def search(words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Search for conversations with WORDS.

    One message contains all of them.
    """
    with opened() as store:
        _print(store.search(" ".join(words), limit).result(), as_json)


@chats.command(epilog="  ropechat chats show 3f2a")
@_id_argument
def show(id: str) -> None:
    """Print the branch of a conversation that was last on screen."""
    from ropechat.store.import_export import to_markdown

    with opened() as store:
        StdoutWriter().write(to_markdown(store.load(id).result()))


def _say_missing(model: str) -> None:
    say(f"note: {model or 'a model'}: not on this machine; alternatives not used are shown by id")


@chats.command("export", epilog=_EXPORTS)
@_id_argument
@option(
    "--format",
    "form",
    type=click.Choice(["md", "json", "html"]),
    default="md",
    show_default=True,
    help="Form of the output.",
)
@option(
    "-o",
    "--output",
    type=FileName(folders=True),
    default=STREAM,
    metavar="OUT",
    help="Output file; a folder: a file in it, named by title, date and sampling [default: stdout].",
)
@overwrite_option
def export_(id: str, form: str, output: Path | str, overwrite: bool) -> None:
    """Export a conversation as Markdown, JSON or a page.

    Markdown is the branch that was last on screen; JSON has all branches and the records of tokens. The page
    (html) shows the tokens of answers with their probabilities and alternatives. The texts of alternatives
    come from the tokenizer of the answer's model, if that model is on this machine.
    """
    from ropechat.chat.export import Spelling, export, format_chat, new_file

    refuse_existing(output, overwrite=overwrite)
    with opened() as store:
        chat = store.load(id).result()
    for fault in chat.damaged:
        say(f"warning: {fault}")
    spell = Spelling(model_folders(), _say_missing)
    if not isinstance(output, Path):
        StdoutWriter().write(format_chat(chat, form, spell))
        return
    path = new_file(chat, form, output) if output.is_dir() else output
    export(chat, form, path, spell)
    if path is not output:
        StdoutWriter().write(f"{path}\n")


@chats.command("import", epilog="  ropechat chats import conversations.json")
@click.argument("file", type=FileName())
def import_(file: Path | str) -> int:
    """Import conversations of other programs; print their ids.

    FILE (- is stdin) is a JSON export of ropechat, the ZIP file or the conversations.json of ChatGPT's data
    export, the JSON export of Open WebUI's chats, the list of `llm logs --json`, or llm's logs.db.
    """
    from ropechat.store.imports.read import read_file, read_stream

    found = read_file(file) if isinstance(file, Path) else read_stream(stdin_stream(), "stdin")
    with opened() as store:
        for id in found.keep(store):
            StdoutWriter().write(f"{id}\n")
    for fault in found.faults:
        say(f"error: {file}: {fault}; this chat was not imported")
    if found.source:
        say(f"note: {found.describe()}")
    return SOME_FAILED if found.faults else OK


@chats.command(epilog='  ropechat chats rename 3f2a "Rotary embeddings"')
@_id_argument
@click.argument("title")
def rename(id: str, title: str) -> None:
    """Change the title of a conversation."""
    with opened() as store:
        store.rename(store.load(id).result().id, title).result()


@chats.command(epilog="  ropechat chats rm 3f2a 91bc")
@click.argument("ids", nargs=-1, required=True, shell_complete=complete_chat)
@option("--yes", is_flag=True, help="Delete without asking.")
def rm(ids: tuple[str, ...], yes: bool) -> None:
    """Delete conversations, leaving no trace.

    Nothing of them remains in the database.
    """
    with opened() as store:
        found = [store.load(id).result() for id in ids]
        for chat in found:
            question = f"delete {chat.id} “{one_line(chat.title)}” permanently?"
            wanted = yes or click.confirm(question, err=True)
            if wanted and not store.delete(chat.id).result():
                say(f"note: {chat.id}: traces remain until no other ropechat has the file open")
        copies = sorted(path.name for path in store.path.parent.glob("damaged-*.db*"))
        if copies:
            say(f"note: {store.path.parent}: {', '.join(copies)}: damaged copies may still contain it")
