"""What the layers contract of import-linter (pyproject.toml, `make lint`) does not see.

Circles between the files of one room, which room may use which library, and what a process really loads.
"""

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[1] / "ropechat"
LIBRARIES = {
    "textual": {"tui", "builtin"},
    "rich": {"tui", "cli", "util"},
    "markdown_it": {"util"},
    "pygments": {"tui"},
    "tokenizers": {"tokenizer"},
    "jinja2": {"engine"},
    "huggingface_hub": {"models"},
    "click": {"cli"},
    "platformdirs": {"util"},
    "sqlite3": {"store"},
}
"""Library: the rooms that may import it."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """All imports of the package, those for types and those inside functions included."""
    return grimp.build_graph("ropechat", include_external_packages=True, cache_dir=None)


def circle(graph: grimp.ImportGraph) -> list[str]:
    """A circle of imports, or an empty list."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if found := visit(imported, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph.modules) if (found := visit(module, []))), [])


def test_no_circles(graph: grimp.ImportGraph) -> None:
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    small = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b")):
        small.add_import(importer=importer, imported=imported)
    assert circle(small) == ["b", "c", "b"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_in_their_rooms(library: str, graph: grimp.ImportGraph) -> None:
    importers = graph.find_modules_that_directly_import(library)
    rooms = {module.split(".")[1] for module in importers}
    assert rooms
    assert rooms <= LIBRARIES[library], f"{library}: {sorted(importers)}"


# ---- What pyproject.toml says ----------------------------------------------------------------------------

PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_library_that_is_imported_is_declared(graph: grimp.ImportGraph) -> None:
    """One that only comes with another may be of any version, or go.

    Programs that load a module of `adapters` bring what it imports.
    """
    lines = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = {re.split(r"[<>=~]", line)[0] for line in lines}
    used = {module for module in graph.modules if graph.is_module_squashed(module)}
    used -= sys.stdlib_module_names | {"__future__", "inspect_ai", "llm", "pydantic", "tqdm"}
    assert used > {"rich", "textual"}
    distributions = {"markdown_it": "markdown-it-py", "aiohttp": "textual-serve"}  # else the same name
    assert {distributions.get(name, name.replace("_", "-")) for name in used} <= names


def test_rich_splits_graphemes_from_14_3_on() -> None:
    assert "rich>=14.3.3" in PROJECT["dependencies"]


def test_the_systems_that_it_runs_on() -> None:
    """Files are locked with fcntl, processes limited as POSIX does: there is no half of a Windows version."""
    systems = {line for line in PROJECT["classifiers"] if line.startswith("Operating System")}
    assert systems == {"Operating System :: POSIX :: Linux"}  # no Mac was tried
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    assert "Linux or macOS" in readme
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"""msvcrt|win32|os\.name\b""", file.read_text(encoding="utf-8")), file


# ---- What a process really loads -------------------------------------------------------------------------

HEAVY = {"textual", "huggingface_hub", "jinja2", "sqlite3", "tokenizers", "numpy", "ropechat.engine._core"}


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
    ["", "run", "inspect", "batch", "template", "models", "bench", "chats", "config", "serve", "doctor"],
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
    render = "from datetime import datetime; from ropechat.engine.templates.process import SHARED as s"
    assert not loaded_by(f"{render}; assert s.render('{{{{ 1 }}}}', {{}}, datetime.now()) == '1'")
    names = "print(*(name for name in sys.modules if 'ropechat.' in name))"
    code = f"import ropechat.engine.templates.sandbox, sys; {names}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    templates = "ropechat.engine.templates"
    ours = {"ropechat.engine", templates, f"{templates}.sandbox", f"{templates}.limits"}
    ours |= {"ropechat.util", "ropechat.util.limited_child"}
    assert set(done.stdout.split()) == ours
