"""The pages for people: what is made from the code is as the code says, and no link is broken."""

import json
import re
import unicodedata
from pathlib import Path

import docs_site
import pages
import pytest

from ropechat.engine.native import model_types

ROOT = Path(__file__).parents[1]
PATTERNS = (
    *("*.md", "docs/*.md", "rust/core/src/family/*.md", "rust/kernels/src/kernel/*.md", "tests/*.md"),
    *("tests/*/*.md", "training/README.md", "ropechat/builtin/*.md"),
)
PAGES = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
LINK = re.compile(r"(?:(?<!`)\]\(|src(?:set)?=\")([^)\s\"]+)[)\"]")


def text_of(path: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The names of a page's headings in links."""
    heads = re.findall(r"^#+ (.*)$", text_of(path), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    kept = ("".join(c for c in head if c in "-_ " or unicodedata.category(c)[0] in "LN") for head in plain)
    return {head.replace(" ", "-") for head in kept}


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.stem)
def test_parts_made_from_the_code_are_current(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert pages.made(page) == page, f"{path.name}: run `make docs`"


def test_which_pages_have_such_parts() -> None:
    assert {path.stem for path in pages.pages()} == {"cli", "keys", "python-names", "settings", "supported"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(text_of(path)):
        if not link.startswith(("http://", "https://")):
            target, _, anchor = link.partition("#")
            found = path.parent / target if target else path
            assert found.exists(), link
            assert not anchor or anchor in anchors(found), link


def test_every_page_is_in_the_index() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(text_of(ROOT / "docs" / "README.md"))}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


def test_every_page_is_in_the_menu_of_the_site() -> None:
    listed = json.dumps(docs_site.menu())
    assert all(f'"docs/{path.name}"' in listed for path in (ROOT / "docs").glob("*.md"))
    assert {ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "docs" / "cli.md"} <= docs_site.collect()


def test_the_site_shows_no_backslash_of_a_table() -> None:
    assert docs_site.for_mkdocs("| `/think [on\\|off]` | a \\| b |\n`x\\|y`\n") == (
        "| `/think [on|off]` | a \\| b |\n`x\\|y`\n"
    )


def test_every_picture_is_shown() -> None:
    shown = {Path(link).name for path in PAGES for link in LINK.findall(text_of(path))}
    assert {path.name for path in (ROOT / "docs" / "pictures").iterdir()} <= shown


def test_the_number_of_model_types_in_the_readme() -> None:
    assert f"{len(model_types())} model types" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_changed_signature_is_seen() -> None:
    source = (ROOT / "ropechat" / "engine" / "engine.py").read_text(encoding="utf-8")
    ((name, shown),) = pages.stub(source, ["Engine"])
    assert (name, shown in (ROOT / "docs" / "python-names.md").read_text(encoding="utf-8")) == (
        "Engine",
        True,
    )
    for old, new in (
        ("def reply(", "def respond("),
        ("top_k: int = 0", "top_k: int = 1"),
        ("-> float:", "-> int:"),
    ):
        assert old in shown
        assert dict(pages.stub(source.replace(old, new), ["Engine"]))["Engine"] != shown
    private = re.sub(r"def _(?!_)", "def _x", source)
    assert dict(pages.stub(private, ["Engine"]))["Engine"] == shown


def test_a_stale_part_and_a_broken_link_are_found(tmp_path: Path) -> None:
    assert pages.made("<!-- make docs: types -->\nold\n<!-- end -->") != "old"
    page = tmp_path / "a.md"
    page.write_text("# What `is` stored, and where\n\n[x](missing.md)\n")
    assert anchors(page) == {"what-is-stored-and-where"}
    with pytest.raises(AssertionError, match=r"missing\.md"):
        test_links_lead_somewhere(page)
    page.write_text("# What `is` stored, and where\n\n[x](a.md#what-is-stored-and-where) [y](a.md#nowhere)\n")
    with pytest.raises(AssertionError, match="nowhere"):
        test_links_lead_somewhere(page)
