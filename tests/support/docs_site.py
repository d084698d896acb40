"""The site: README and docs/ as they are, with a menu from docs/README.md (`make site`, to target/site/html).

Pages and what they link to are copied to a folder with the same paths, so that each link leads where it leads
in the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "target" / "site"
LINK = re.compile(r"(?:(?<!`)\]\(|src(?:set)?=\")([^)\s#\"]+)(?:#[^)\s]*)?[)\"]")
INDEX = "docs/README.md"
DESCRIPTION = "Chat with language models on your own CPU, and see the probability of every token"
WRITTEN = ("README.md", "MODEL_CARD.md", "CONTRIBUTING.md", "SECURITY.md", "BENCHMARKS.md", "CHANGELOG.md")
"""Pages outside docs/ for people; other Markdown is shown as it is, such as what a model said."""
_TITLE = re.compile(r"^## (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"\[([^]]+)\]\(([^)#\s]+)\)")


def _linked(page: Path) -> Iterator[Path]:
    """The files of this repository that a page links to or shows."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        found = (page.parent / link).resolve()
        if "://" not in link and found.is_file():
            yield found


def collect() -> set[Path]:
    """README, the pages in docs/, and every file that they lead to."""
    found, waiting = set[Path](), [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    while waiting:
        page = waiting.pop()
        if page not in found:
            found.add(page)
            waiting += _linked(page) if page.suffix == ".md" else ()
    return found


def menu() -> list[dict[str, object]]:
    """The sections of docs/README.md with their pages, each page once."""
    text = (ROOT / INDEX).read_text(encoding="utf-8")
    _, *parts = _TITLE.split(text)
    seen = {"README.md"}
    found: list[dict[str, object]] = [{"ropechat": "README.md"}, {"All pages": INDEX}]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        entries = []
        for name, link in _ENTRY.findall(body):
            path = str((ROOT / "docs" / link).resolve().relative_to(ROOT))
            if path not in seen and path.endswith(".md"):
                seen.add(path)
                entries.append({name[0].upper() + name[1:]: path})
        if entries:
            found.append({title: entries})
    return found


def settings() -> dict[str, object]:
    """What mkdocs reads. Fonts, icons and scripts are in the site: it loads nothing from elsewhere."""

    def palette(scheme: str, media: str, icon: str, other: str) -> dict[str, object]:
        toggle = {"icon": icon, "name": f"{other} colours"}
        return {"media": media, "scheme": scheme, "primary": "teal", "accent": "teal", "toggle": toggle}

    features = ["navigation.sections", "navigation.top", "content.code.copy", "search.suggest", "toc.follow"]
    return {
        "site_name": "ropechat",
        "site_description": DESCRIPTION,
        "docs_dir": str(SITE / "source"),
        "site_dir": str(SITE / "html"),
        "nav": menu(),
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": features,
            "palette": [
                palette("default", "(prefers-color-scheme: light)", "material/weather-night", "Dark"),
                palette("slate", "(prefers-color-scheme: dark)", "material/weather-sunny", "Light"),
            ],
        },
        "extra_css": ["site.css"],
        "plugins": ["search"],
        "markdown_extensions": [
            "tables",
            "md_in_html",
            "pymdownx.superfences",
            {"pymdownx.highlight": {"use_pygments": True}},
            {"toc": {"permalink": True, "slugify": "@slug"}},
        ],
        "validation": {"links": {"anchors": "warn", "not_found": "warn"}, "nav": {"omitted_files": "ignore"}},
    }


def for_mkdocs(text: str) -> str:
    r"""GitHub's tables escape a `|` of code, as `\|`; mkdocs would show the backslash."""
    spans = re.compile(r"`[^`]+`")
    row = re.compile(r"^\|.*", re.MULTILINE)
    return row.sub(lambda line: spans.sub(lambda span: span[0].replace("\\|", "|"), line[0]), text)


STYLE = """
.md-grid { max-width: 64rem; }
.md-typeset h1 { color: inherit; font-weight: 700; margin-bottom: .8rem; }
.md-typeset h2, .md-typeset h3 { font-weight: 600; letter-spacing: 0; }
.md-typeset table:not([class]) { font-size: .68rem; }
.md-typeset table:not([class]) th, .md-typeset table:not([class]) td { min-width: 0; padding: .45em .8em; }
.md-typeset td code { word-break: normal; }
.md-typeset td:nth-child(n+5) code { word-break: break-word; }
.md-typeset table:not([class]):has(td:first-child code) td:nth-child(-n+2) code { white-space: nowrap; }
.md-typeset table:not([class]) thead:not(:has(th:not(:empty))) { display: none; }
.md-typeset pre > code { font-size: .62rem; line-height: 1.35; }
@media (max-width: 44.98em) {
  .md-typeset table:not([class]) th, .md-typeset table:not([class]) td { padding: .4em .5em; }
  .md-typeset table:not([class]):has(td:first-child code):has(td:nth-child(4)) { min-width: 34rem; }
  .md-typeset table:not([class]) td:has(> img) { display: block; }
}
"""


def main() -> int:
    """Copy, write the settings, build. Returns the exit code of mkdocs."""
    shutil.rmtree(SITE, ignore_errors=True)
    for path in sorted(collect()):
        to = SITE / "source" / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md" and path.name not in WRITTEN and path.parent.name != "docs":
            to.write_text(
                f"# {path.name}\n\n`````text\n{path.read_text(encoding='utf-8')}\n`````\n", encoding="utf-8"
            )
        elif path.suffix == ".md":
            to.write_text(for_mkdocs(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, to)
    (SITE / "source" / "site.css").write_text(STYLE, encoding="utf-8")
    slug = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
    config = SITE / "mkdocs.yml"  # JSON is YAML
    config.write_text(json.dumps(settings(), indent=1).replace('"@slug"', slug), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(config)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
