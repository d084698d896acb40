"""`ropechat man`: manual pages, made from the help."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

from ropechat.cli.common import StdoutWriter
from ropechat.cli.exit_codes import EXIT_CODES
from ropechat.cli.option_groups import GroupedCommand, is_help, option
from ropechat.errors import FileAccessError

_EXAMPLES = """
  ropechat man run
  ropechat man --output ~/.local/share/man/man1
"""


def _plain(text: str) -> str:
    """Text for roff: nothing in it is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def _paragraphs(text: str) -> Iterator[str]:
    """Those of a help text; one that begins with click's mark keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        kept = paragraph.startswith("\b")
        body = _plain(paragraph.removeprefix("\b\n") if kept else " ".join(paragraph.split()))
        yield f".PP\n.nf\n{body}\n.fi\n" if kept else f".PP\n{body}\n"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    title = ""
    for one in command.get_params(context):
        record = one.get_help_record(context) if isinstance(one, click.Option) else None
        if record is None or is_help(one):
            continue
        if (group := getattr(one, "title", "Options")) != title:
            title = group
            yield f".SS {_plain(title)}\n"
        yield f".TP\n.B {_plain(record[0])}\n{_plain(' '.join(record[1].split()))}\n"


def _sections(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    from ropechat.cli.group import COMMANDS, ropechat

    whole = command is ropechat
    name = str(context.info_name)
    first, _, rest = (command.help or "").partition("\n\n")
    about = COMMANDS.get(name.removeprefix("ropechat "), " ".join(first.split())).rstrip(".")
    yield "NAME", f"{_plain(name.replace(' ', '-'))} \\- {_plain(about)}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield "SYNOPSIS", f".B {_plain(name)}\n{_plain(usage)}\n"
    yield "DESCRIPTION", "".join(_paragraphs(f"{first}\n\n{rest}"))
    listed: dict[str, str] = {}
    if whole:
        listed = COMMANDS
    elif isinstance(command, click.Group):
        listed = {one: found.get_short_help_str(200) for one, found in command.commands.items()}
    if listed:
        entries = (f".TP\n.B {_plain(one)}\n{_plain(about)}\n" for one, about in listed.items())
        yield "COMMANDS", "".join(entries)
    yield "OPTIONS", "".join(_options(command, context))
    yield "EXAMPLES", f".nf\n{_plain((command.epilog or '').strip(chr(10)))}\n.fi\n"
    if whole:
        from ropechat.settings.spec import SETTINGS

        entries = (f".TP\n.B {one.variable}\n{_plain(one.help)}\n" for one in SETTINGS)
        yield "ENVIRONMENT", "".join(entries)
        codes = (f".TP\n.B {code}\n{_plain(text)}\n" for code, text in EXIT_CODES.items())
        yield "EXIT STATUS", "".join(codes)
        pages = ", ".join(f".BR ropechat\\-{one} (1)" for one in COMMANDS).replace(", ", " ,\n")
        yield "SEE ALSO", f"{pages}\n"
    else:
        yield "SEE ALSO", ".BR ropechat (1)\n"


def page(command: click.Command, name: str) -> str:
    """The manual page of a command in roff. name: with that of the program, such as "ropechat models rm"."""
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    heading = f'.TH "{_plain(name.replace(" ", "-").upper())}" "1" "" "ropechat" "ropechat manual"\n'
    texts = (f".SH {title}\n{text}" for title, text in _sections(command, context) if text)
    return heading + "".join(texts)


def pages() -> Iterator[tuple[str, str]]:
    """(name of the file, text) of every command."""
    from ropechat.cli.group import COMMANDS, ropechat

    def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
        yield path, group
        context = click.Context(group)
        for name in COMMANDS if group is ropechat else group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            if isinstance(found, click.Group):
                yield from walk(found, f"{path} {name}")
            else:
                yield f"{path} {name}", found

    for name, command in walk(ropechat, "ropechat"):
        yield f"{name.replace(' ', '-')}.1", page(command, name)


@click.command(cls=GroupedCommand, epilog=_EXAMPLES)
@click.argument("words", metavar="[COMMAND]", nargs=-1)
@option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="FOLDER", help="Write all pages."
)
def man(words: tuple[str, ...], folder: Path | None) -> None:
    """Show the manual page of COMMAND, or of ropechat.

    In a pipe the page is roff; in a terminal it is shown by `man`.
    """
    if folder is not None:
        if words:
            raise click.UsageError("--output: writes all pages; omit COMMAND")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in pages():
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise FileAccessError(f"{folder}: {error.strerror}") from None
        return
    wanted = "-".join(("ropechat", *words)) + ".1"
    found = [text for name, text in pages() if name == wanted]
    if not found:
        raise click.UsageError(f"{' '.join(words)}: unknown command; `ropechat --help` lists them")
    out = StdoutWriter()
    if out.is_terminal and shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=found[0].encode(), check=False)
        return
    out.write(found[0])
