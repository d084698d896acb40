"""The parts of docs/ that are made from the code: keys, settings, commands, model types (`make docs`).

A page has text of its own around each part, which lies between two comments:

    <!-- make docs: NAME -->
    <!-- end -->
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

import click  # noqa: E402

from ropechat.cli.group import ropechat  # noqa: E402
from ropechat.cli.option_groups import SHOWS_ALL  # noqa: E402

DOCS = ROOT / "docs"
WIDTH = 96  # of help texts, in cells: what fits on a page
PART = re.compile(r"(<!-- make docs: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """A span of code; nothing for nothing."""
    return f"`{text}`" if text else ""


def keys() -> str:
    """Every key and typed command, by the place where it works."""
    from ropechat.tui.commands.registry import ALL, CONTEXTS, SYNONYMS, Command, shown

    def row(command: Command) -> tuple[str, ...]:
        names, name = [shown(key, long=True) for key in command.keys.split(",") if key], command.id
        if re.search(r"\d$", name):  # one of nine
            names, name = ["1-9"], re.sub(r"\d$", "1", name) + " to 9"
        typed = f"/{command.typed}" if command.typed else ""
        return (" ".join(map(code, names)), code(typed), command.help, code(name))

    parts = []
    for context, title in CONTEXTS.items():
        rows = [row(one) for one in ALL if one.context == context and not re.search(r"[2-9]$", one.id)]
        if rows:
            parts.append(f"## {title}\n\n" + table(("key", "typed", "what it does", "name"), rows))
    other = (f"`/{name}` is `/{meant}`" for name, meant in sorted(SYNONYMS.items()))
    return "\n".join(parts) + f"\n## Names of other programs\n\n{', '.join(other)}.\n"


def settings() -> str:
    """Every setting, with its flags."""
    from ropechat.sampling import SETTINGS as SAMPLER
    from ropechat.settings.spec import SETTINGS, Setting

    flags: dict[str, str] = {}
    for _, command in commands():
        for one in command.params:
            if isinstance(one, click.Option) and one.name not in flags:
                flags[str(one.name)] = " ".join(
                    code(max(opts, key=len)) for opts in (one.opts, one.secondary_opts) if opts
                )

    def values(one: Setting) -> str:
        if isinstance(one.default, bool):
            return ""
        if one.choices:
            return ", ".join(map(shown, one.choices))
        number = SAMPLER.get(one.option)
        if number is None:
            return ""
        low, high = shown(number.low), shown(number.high)
        return f"{low} to {high}" if number.high < 2**31 - 1 else f"at least {low}"

    def shown(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list | tuple):
            return " ".join(code(str(item).replace("\n", "\\n")) for item in value)
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    rows = []
    for one in SETTINGS:
        assert one.variable == f"ROPECHAT_{one.name.rpartition('.')[2].upper()}", "the page states this rule"
        what = f"{one.help}<br>{values(one)}".removesuffix("<br>")
        rows.append((code(one.name), flags.get(one.option, ""), shown(one.default), what))
    return table(("setting", "flag", "default", "what it is, its values"), rows)


def commands(group: click.Group = ropechat, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that the help lists, with its names, in the help's order."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if not command.hidden:
            yield f"{path} {name}".strip(), command
            if isinstance(command, click.Group):
                yield from commands(command, f"{path} {name}".strip())


def help_of(command: click.Command, name: str) -> str:
    """What --help-all prints, whatever the terminal."""
    context: Any = click.Context(
        command,
        info_name=f"ropechat {name}".strip(),
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=list(ropechat.context_settings["help_option_names"]),
    )
    context.meta[SHOWS_ALL] = True
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def cli() -> str:
    """What every command says about itself."""
    found = [("", ropechat), *commands()]
    return "\n".join(
        f"## ropechat {name}".rstrip() + f"\n\n```text\n{help_of(one, name)}\n```\n" for name, one in found
    )


def exits() -> str:
    """The exit codes."""
    from ropechat.cli.exit_codes import EXIT_CODES

    return table(("code", ""), ((str(code), text) for code, text in EXIT_CODES.items()))


def families() -> str:
    """The model types, with their names in GGUF files."""
    from ropechat.engine.native import gguf_architectures, model_types

    of_gguf = gguf_architectures()
    rows = [(code(name), ", ".join(map(code, of_gguf.get(name, [])))) for name in sorted(model_types())]
    return table(("`model_type`", "`general.architecture` of GGUF files"), rows)


def types() -> str:
    """What --dtype and --kv-dtype take."""
    from ropechat.settings.spec import DTYPES, KV_DTYPES

    rows = [("`--dtype`", " ".join(map(code, DTYPES))), ("`--kv-dtype`", " ".join(map(code, KV_DTYPES)))]
    return table(("option", "types"), rows)


SHOWN_METHODS = ("__enter__", "__exit__", "__getitem__", "__init__", "__iter__", "__len__")


def stub(source: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(name, declaration with docstrings) of the named classes and functions of a module's source."""
    lines = source.splitlines()

    def declared(node: ast.stmt) -> list[str]:
        """The lines before the body, its docstring included."""
        decorators = getattr(node, "decorator_list", [])
        begin, end = min([node.lineno, *(one.lineno for one in decorators)]), node.end_lineno
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            first, returns = node.body[0], getattr(node, "returns", None)
            head = returns.end_lineno if returns is not None else node.lineno
            end = first.end_lineno if ast.get_docstring(node) is not None else max(head, first.lineno - 1)
        return lines[begin - 1 : end]

    def is_shown(node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef):
            return not node.name.startswith("_") or node.name in SHOWN_METHODS
        return (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and not node.target.id.startswith("_")
        )

    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            found = declared(node)
            was_field = False
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if is_shown(member):
                    is_field = isinstance(member, ast.AnnAssign)
                    found += ([] if is_field and was_field else [""]) + declared(member)
                    was_field = is_field
            yield node.name, "\n".join(found)


def python() -> str:
    """The public names, as they are declared."""
    import ropechat as package

    texts = dict[str, str]()
    for module in sorted({getattr(package, name).__module__ for name in package.__all__}):
        path = sys.modules[module].__file__ or ""
        texts |= stub(Path(path).read_text(encoding="utf-8"), package.__all__)
    return "\n".join(f"## {name}\n\n```python\n{texts[name]}\n```\n" for name in package.__all__)


PARTS = {
    "python": python,
    "keys": keys,
    "settings": settings,
    "cli": cli,
    "exits": exits,
    "families": families,
    "types": types,
}


def made(page: str) -> str:
    """A page with its parts made again. Raises KeyError for a part that no function makes."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", page)


def pages() -> list[Path]:
    """The pages that have such parts."""
    return [path for path in sorted(DOCS.glob("*.md")) if PART.search(path.read_text(encoding="utf-8"))]


def main() -> int:
    """Write the parts; say which pages changed."""
    for path in pages():
        old = path.read_text(encoding="utf-8")
        if (new := made(old)) != old:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
