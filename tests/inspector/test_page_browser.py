"""The page in a real browser, with and without script; skipped without one (tests/support/browser.py)."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page
from hostile_html import strings
from readings import reading

from ropechat.inspector import attention_map, lens_page, matrix_page, strip, trace_page
from ropechat.inspector.matrix import Cell, Matrix, Row
from ropechat.trace import LensRow

WORDS = ["The", " cat", " sat", " on", " the", " mat", ".\n", "It", " slept", " <b>", " x", " y", " z", "!"]
AT = "[...document.querySelectorAll('.tokens > span')].findIndex((span) => span.classList.contains('at'))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


def write(path: Path, pieces: list[str], title: str = "title") -> Path:
    path.write_text("".join(trace_page.render([reading(pieces, top_k=5)], title)), "utf-8")
    return path


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Page:
    return browser.open(write(tmp_path / "page.html", WORDS))


def token(i: int) -> str:
    return f".tokens > span:nth-of-type({i + 1})"


def panel(page: Page) -> str:
    return str(page.value("document.getElementById('panel').innerText"))


def test_hover_shows_the_candidates(page: Page) -> None:
    assert "Most surprising" in panel(page)
    page.point(token(3))
    assert "·on" in panel(page)
    assert "3.00 bits" in panel(page)
    assert page.value("document.querySelectorAll('#panel li').length") == 5
    assert page.value("document.querySelector('#panel li.chosen .word').textContent") == "·on"
    page.point(token(0))
    assert "no score" in panel(page)
    page.point(token(len(WORDS)))
    assert "next token" in panel(page)
    assert page.faults() == []
    assert page.requests() == []


def test_keys_move(page: Page) -> None:
    for key, place in [("ArrowRight", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("n", 7)]:
        page.press(key)
        assert page.value(AT) == place
    assert "7.00 bits" in panel(page)
    page.press("n")
    page.press("ArrowUp")
    assert page.value(AT) < 8
    page.press("ArrowDown")
    assert page.value(AT) >= 7
    page.press("Escape")
    assert page.value(AT) == -1
    assert "Most surprising" in panel(page)
    page.click(token(4))
    page.point(token(9))
    assert page.value(AT) == 4  # a click holds the token
    assert page.faults() == []


def test_the_slider_hides(page: Page) -> None:
    hidden = "document.querySelectorAll('.tokens > span.hidden').length"
    assert page.value(hidden) == 0
    page.value("document.getElementById('least').focus()")
    for _ in range(10):
        page.press("ArrowRight")  # 0.5 bits each
    assert page.value("document.getElementById('least-shown').value") == "5 bits"
    assert page.value(hidden) == 5 + 1  # tokens of 0 to 4 bits, and the place after the last one
    color = f"getComputedStyle(document.querySelector('{token(4)}')).color"
    assert page.value(color) == "rgba(0, 0, 0, 0)"
    assert page.value(color.replace(token(4), token(5))) != "rgba(0, 0, 0, 0)"


def test_the_tint_switches(page: Page) -> None:
    classes = "[...document.querySelectorAll('.tokens > span')].map((span) => span.className)"
    seen = [page.value(classes)]
    for name in ("rank", "entropy", "margin"):
        page.click(f"input[value={name}] + span")
        seen.append(page.value(classes))
    assert seen[0][:4] == ["", "", "t1", "t2"]
    assert len({str(one) for one in seen}) == 4
    assert page.value("document.getElementById('full-tint').textContent") == "two equally likely"


def test_search_crosses_tokens(page: Page) -> None:
    page.press("/")
    page.type("cat SAT")
    assert page.value("document.getElementById('count').value") == "1 found"
    found = "[...document.querySelectorAll('.found')].map((span) => span.textContent)"
    assert page.value(found) == [" cat", " sat"]
    page.press("Enter")
    assert page.value(AT) == 1


def test_what_is_selected_is_the_text(page: Page) -> None:
    select = "getSelection().selectAllChildren(document.querySelector('.tokens')); getSelection().toString()"
    assert page.value(select).rstrip("\n") == "".join(WORDS)


def test_the_cursor_of_the_chart_is_that_of_the_text(page: Page) -> None:
    cursor = "document.querySelector('#chart .cursor').getBoundingClientRect()"
    box = "document.querySelector('#chart svg').getBoundingClientRect()"
    shown = "document.getElementById('chart').offsetHeight > 0"
    assert not page.value(shown)
    page.click("#charted")
    assert page.value(shown)
    names = "[...document.querySelectorAll('#chart path')].map((one) => one.className.baseVal)"
    assert page.value(names) == ["surprisal", "entropy", "runner-up", "chosen"]
    page.press("ArrowRight")
    for place in (1, 2, 3):
        page.press("ArrowRight")
        assert page.value(AT) == place
        left = page.value(f"({cursor}.left - {box}.left - 58) / {cursor}.width")
        assert left == pytest.approx(place - 1, abs=0.2)  # the first token has no score, and no column
    page.press("Escape")
    assert page.value("getComputedStyle(document.querySelector('#chart .cursor')).visibility") == "hidden"
    page.click("#chart .chosen")
    middle = page.value(AT)
    assert middle == pytest.approx(len(WORDS) / 2, abs=1.5)
    left = page.value(f"({cursor}.left - {box}.left - 58) / {cursor}.width")
    assert left == pytest.approx(middle - 1, abs=0.2)
    page.click("#charted")
    assert not page.value(shown)
    assert page.faults() == []
    assert page.requests() == []


def test_without_script_the_page_reads(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write(tmp_path / "page.html", WORDS), script=False)
    assert "The cat sat on the mat." in page.value("document.body.innerText")
    for hidden in ("#panel", "#least", "#search", "fieldset"):
        assert page.value(f"document.querySelector('{hidden}').offsetParent === null"), hidden
    title = page.value(f"document.querySelector('{token(3)}').title")
    assert title.startswith("3.00 bits, rank 4\n60.7% ·on\n")
    tinted = f"getComputedStyle(document.querySelector('{token(9)}')).backgroundColor"
    assert page.value(tinted) not in ("rgba(0, 0, 0, 0)", page.value(tinted.replace(token(9), token(3))))
    assert page.faults() == []


@pytest.mark.parametrize("script", [True, False])
def test_500_hostile_strings_make_no_element_and_no_request(
    browser: Browser, tmp_path: Path, script: bool
) -> None:
    pieces = strings()
    page = browser.open(write(tmp_path / "page.html", pieces, title=pieces[0]), script=script)
    plain = browser.open(write(tmp_path / "plain.html", ["word"] * len(pieces)), script=script)
    names = "[...new Set([...document.querySelectorAll('*')].map((one) => one.localName))].sort()"
    count = "document.querySelectorAll('body *:not(.newline)').length"
    if script:
        order = random.Random(5).sample(range(len(pieces)), 60)  # shown in the panel, with their candidates
        show = "for (const i of {}) document.querySelectorAll('.tokens > span')[i].dispatchEvent("
        page.value(show.format(order) + "new PointerEvent('pointerover', { bubbles: true }))")
        plain.value(show.format(order) + "new PointerEvent('pointerover', { bubbles: true }))")
    assert page.value(names) == plain.value(names)
    assert page.value(count) == plain.value(count)
    assert page.value("typeof window.hacked") == "undefined"
    attributes = "[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    known = {
        "class",
        "title",
        "id",
        "data-first",
        "name",
        "content",
        "charset",
        "http-equiv",
        "lang",
        "type",
        "value",
    }
    known |= {"for", "min", "max", "step", "checked", "placeholder", "aria-label", "aria-live", "data-label"}
    assert set(page.value(attributes)) <= (known | {"style"} if script else known)  # the script sets bars
    assert page.requests() == []
    assert page.faults() == []


def test_hostile_strings_make_no_element_of_a_picture(browser: Browser, tmp_path: Path) -> None:
    pieces = strings()
    path = tmp_path / "strip.svg"
    path.write_text("".join(strip.render([reading(pieces, name=pieces[0], model=pieces[1])])), "utf-8")
    page = browser.open(path)
    names = "[...new Set([...document.querySelectorAll('*')].map((one) => one.localName))].sort()"
    assert page.value(names) == ["path", "rect", "svg", "text", "title"]
    assert page.value("typeof window.hacked") == "undefined"
    assert page.requests() == page.faults() == []


@pytest.mark.slow
def test_10_000_tokens_are_usable_within_a_second(browser: Browser, tmp_path: Path) -> None:
    """What is asserted is the size; the seconds are in docs/inspect.md."""
    path = write(tmp_path / "page.html", [*WORDS, " and", " so", " on"] * 589)
    assert path.stat().st_size < 3_000_000
    page = browser.open(path)
    assert page.value("document.documentElement.classList.contains('ready')")
    page.press("n")
    assert page.value(AT) == 7
    assert page.faults() == []


@pytest.mark.slow
def test_the_page_of_a_chat_shows_markdown_and_its_signs_when_they_are_asked_for(
    browser: Browser, tmp_path: Path
) -> None:
    from ropechat.conversation import ConversationTree, Role
    from ropechat.inspector.chat_page import to_html
    from ropechat.sampling import Sampling
    from ropechat.store.queries import Chat
    from ropechat.trace import Step

    words = [
        "# ",
        "Title",
        "\n\n",
        "Some",
        " **",
        "bold",
        "**",
        " word",
        "\n\n",
        "```python\n",
        "x = 1\n",
        "```",
    ]
    tree = ConversationTree()
    answer = tree.answer(tree.write(Role.USER, "Hi").id, "m", Sampling())
    for at, word in enumerate(words):
        nll = -float(at)
        tree.add(
            answer.id, Step(at, word.encode(), word, nll, 1, 1.0, ((at, nll),), None, at, None, (), None)
        )
    source = "".join(to_html(Chat("x", "chat", tree), lambda model, id: words[id].encode()))
    (tmp_path / "chat.html").write_text(source, "utf-8")
    page = browser.open(tmp_path / "chat.html")

    def shown() -> str:
        return str(page.value("document.querySelector('.markdown').innerText"))

    at = "document.querySelector('.markdown .at')?.textContent"
    assert "Some bold word" in shown()
    assert "**" not in shown()
    assert "mono" in page.value("getComputedStyle(document.querySelector('.markdown .code')).fontFamily")
    for _ in range(5):
        page.press("ArrowRight")
    assert page.value(at) == " **"  # hidden, until the cursor is on it
    assert "Some **bold word" in shown()
    page.click(".markdown .h1 span:nth-of-type(2)")
    assert page.value(at) == "Title"
    page.value("document.querySelector('input[name=text][value=source]').click()")
    assert "Some **bold** word" in shown()
    assert page.value("document.querySelectorAll('.markdown .t3').length") > 0
    page.value("document.querySelector('input[name=tint][value=none]').click()")
    assert page.value("document.querySelectorAll('.t1, .t2, .t3, .t6').length") == page.value(
        "document.querySelectorAll('.gradient .t1, .gradient .t2, .gradient .t3, .gradient .t6').length"
    )
    assert page.faults() == []


@pytest.mark.slow
def test_tables_of_hostile_texts(browser: Browser, tmp_path: Path) -> None:
    """Of a lens, an attention map and a matrix: cells of one width, no element of a text, no request."""
    texts = list(strings())[:100]
    ids = list(range(len(texts)))
    spelled = [text.encode("utf-8", "replace") for text in texts]
    rows = [
        LensRow(i, layer, 1 + 7**layer, -2.0, 1.0, ((i % len(ids), -0.5),), ((-3.0, 9),))
        for i in range(1, len(ids))
        for layer in (0, 1)
    ]
    weights = [[1.0 / len(ids)] * len(ids)] * len(ids)
    cells: list[Cell | None] = [Cell(-1.0, 1, 1, True), Cell(-2.0, 1, 1, False)]
    matrix = Matrix([Row(text, texts[:2], cells, 0) for text in texts], texts[:2], {"model": texts[3]})
    known = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "p",
        "div",
        "table",
        "thead",
        "tbody",
    }
    known |= {"tr", "th", "td", "small", "span", "bdi", "dl", "dt", "dd", "script"}
    for name, pieces in (
        ("lens", lens_page.render(rows, ids, [0, 1], texts[4], spelled.__getitem__, 50_000, texts[5:6])),
        ("map", attention_map.render(weights, ids, spelled.__getitem__, texts[4])),
        ("matrix", matrix_page.render(matrix, texts[4])),
    ):
        path = tmp_path / f"{name}.html"
        path.write_text("".join(pieces), "utf-8")
        page = browser.open(path)
        assert {*page.value("[...document.querySelectorAll('*')].map((one) => one.localName)")} <= known, name
        widths = "[...document.querySelectorAll('td:last-child')].map((one) => one.offsetWidth)"
        assert len({*page.value(widths)}) == 1, name
        assert page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
            name
        )
        assert page.requests() == page.faults() == []
