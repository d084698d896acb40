"""The Python half of CONTRIBUTING's map: who may import whom, who may import which library, and how late."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ropechat"

# Each module imports only modules of the rungs before its own.
LADDER: list[set[str]] = [
    # leaves
    {"errors", "conversation", "sampling", "trace", "paths", "machine", "text", "detokenizer"}
    | {"template_limits", "beside", "builtin", "vocabulary_pages"},
    {"arguments", "model_files", "weight_files", "text_lane", "packed", "tokenizer_cache", "tree"}
    | {"settings"}
    | {"template_child", "template_process"},
    {"template", "tokenizer", "compiled"},
    {"hub"},
    {"model_folder", "model_source", "records", "chat_prompt"},
    {"model_check", "schedule"},
    {"engine", "model_list"},
    {"store", "batch", "report", "bench"},
    {"tui"},
    {"cli"},
]


def below(rung: int) -> set[str]:
    return set().union(*LADDER[:rung])


MAY_IMPORT: dict[str, set[str]] = {name: below(rung) for rung, names in enumerate(LADDER) for name in names}
MAY_IMPORT["compiled"] |= {"_core"}  # and nobody else
MAY_IMPORT["engine"] |= {"_core"}  # as a type
MAY_IMPORT["builtin.training"] = below(7) | {"builtin"}  # not in the wheel; it trains and evaluates
MAY_IMPORT |= {"store": LADDER[0] | {"tree"}, "__init__": below(7), "__main__": {"cli"}}

LIBRARIES: dict[str, set[str]] = {
    "textual": {"tui"},
    "rich": {"tui"},
    "markdown_it": {"tui"},
    "pygments": {"tui"},
    "tokenizers": {"tokenizer", "builtin.training"},
    "jinja2": {"template_child"},
    "huggingface_hub": {"hub"},
    "click": {"cli"},
    "platformdirs": {"paths"},
    "sqlite3": {"store"},
}


def module_of(file: Path) -> str:
    """The module or subpackage of ropechat that a file belongs to: tui/render/x.py is `tui`."""
    parts = file.relative_to(PACKAGE).parts
    return "builtin.training" if parts[:2] == ("builtin", "training") else parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import statement, however late it runs."""
    package = ["ropechat", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if module == "ropechat" else module


def faults(files: list[Path]) -> list[str]:
    found = []
    for file in files:
        own = module_of(file)
        for line, name in imports(file):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            where = f"{file.relative_to(PACKAGE.parent)}:{line}: {own} imports {name}"
            if top == "ropechat" and other not in {own, "__version__"} | MAY_IMPORT.get(own, set()):
                found.append(f"{where}; it may import {sorted(MAY_IMPORT.get(own, set()))}")
            if own not in LIBRARIES.get(top, {own}):
                found.append(f"{where}; only {sorted(LIBRARIES[top])} may")
    return found


def test_who_imports_whom() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    unknown = {module_of(file) for file in files} - MAY_IMPORT.keys()
    assert not unknown, f"give {unknown} a line in MAY_IMPORT and in CONTRIBUTING"
    assert not faults(files)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("sampling.py", "from .errors import RequestError"),
        ("sampling.py", "from ropechat import errors"),
        ("tokenizer/gguf.py", "def f():\n    from .. import _core"),
        ("engine.py", "import ropechat.tui.app"),
        ("tui/app.py", "from ..cli import main"),
        ("tui/widgets/composer.py", "from ... import _core"),
        ("batch/runner.py", "import textual.widgets"),
        ("cli/run.py", "import huggingface_hub"),
        ("nowhere.py", "from ropechat import engine"),
    ],
)
def test_the_check_can_fail(file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "ropechat")
    path = tmp_path / "ropechat" / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert len(faults([path])) == 1


# ---- What pyproject.toml says ----------------------------------------------------------------------------

PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_library_that_is_imported_is_declared() -> None:
    """One that only comes with another may be of any version, or go."""
    lines = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = {re.split(r"[<>=~]", line)[0] for line in lines}
    files = sorted(PACKAGE.rglob("*.py"))
    used = {name.partition(".")[0] for file in files for _, name in imports(file)}
    used -= sys.stdlib_module_names | {"ropechat", "__future__"}
    assert used > {"rich", "textual"}
    distributions = {"markdown_it": "markdown-it-py", "aiohttp": "textual-serve"}  # else the same name
    assert {distributions.get(name, name.replace("_", "-")) for name in used} <= names


def test_rich_splits_graphemes_from_14_3_on() -> None:
    assert "rich>=14.3" in PROJECT["dependencies"]


def test_the_systems_that_it_runs_on() -> None:
    """Files are locked with fcntl, processes limited as POSIX does: there is no half of a Windows version."""
    systems = {line for line in PROJECT["classifiers"] if line.startswith("Operating System")}
    assert systems == {"Operating System :: MacOS", "Operating System :: POSIX :: Linux"}
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    assert "Linux or macOS" in readme
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"""msvcrt|win32|os\.name\b""", file.read_text(encoding="utf-8")), file


# ---- What a process really loads -------------------------------------------------------------------------

HEAVY = {"textual", "huggingface_hub", "jinja2", "sqlite3", "tokenizers", "numpy", "ropechat._core"}


def loaded_by(code: str) -> set[str]:
    report = "import atexit, sys; atexit.register(lambda: print('\\n', *sys.modules, file=sys.stderr))\n"
    done = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = set(done.stderr.splitlines()[-1].split())
    return {name for name in HEAVY if name in names}


def test_import_ropechat_is_light() -> None:
    assert not loaded_by("import ropechat")


@pytest.mark.parametrize(
    "command",
    ["", "run", "inspect", "batch", "template", "models", "bench", "chats", "config", "serve"],
)
def test_help_is_light(command: str) -> None:
    code = f"from ropechat.cli import main; sys.exit(main([*{command.split()}, '--help']))"
    assert not loaded_by(code)


@pytest.mark.parametrize("command", ["run", "inspect", "batch"])
def test_what_a_use_loads(command: str, tmp_path: Path) -> None:
    """A model with ids only cannot take text, but everything is loaded by then."""
    from models import write_llama

    model = write_llama(tmp_path / "model")
    given = tmp_path / "in.jsonl"
    given.write_text('{"id": "a", "prompt": "x"}\n')
    rest = [str(given), "-o", str(tmp_path / "out.jsonl")] if command == "batch" else ["x"]
    arguments = ["ropechat", command, "-m", str(model), *rest]
    code = f"""
from ropechat.cli import main
sys.argv = {arguments!r}
try:
    main()
except SystemExit as error:
    assert error.code in (None, 0, 2, 3), error.code
"""
    assert not loaded_by(code) & {"textual", "huggingface_hub", "jinja2", "sqlite3"}


def test_templates_are_rendered_elsewhere() -> None:
    """jinja2 stays out of the process with the model, and all but the limits out of the one with jinja2."""
    render = "from datetime import datetime; from ropechat.template_process import SHARED as s"
    assert not loaded_by(f"{render}; assert s.render('{{{{ 1 }}}}', {{}}, datetime.now()) == '1'")
    code = (
        "import ropechat.template_child, sys; print(*(name for name in sys.modules if 'ropechat.' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert set(done.stdout.split()) == {"ropechat.template_child", "ropechat.template_limits"}
