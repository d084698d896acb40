"""Markdown in the page of a chat: the text and every token stay, in blocks."""

from __future__ import annotations

import html
import random
import re

from ropechat.inspector.chat_markdown import render
from ropechat.inspector.spans import Token, TokenSpans

TEXT = r"""# A title

Some **bold** and *em*, `code`, \*stars\* &amp; [a link](https://example.org).
A second line.

- one
- two **b**
  - nested
12. twelfth

```python
def f(x):
    return x + 1
```

> quoted
> more

| a | b |
| --- | --- |
| 1 | two *em* |

---

End with ~~strike~~."""
SIGNS = ["#", "##", "**", "*", "`", "```", "\n", "\n\n", "- ", "1. ", "> ", "|", "---", "word", " ", "[a](b)"]
SIGNS += ["\\*", "&lt;", "<b>", "é", "    ", "~~", "\t", "\r", "| --- |\n", "\u2028"]


def page_of(pieces: list[str]) -> str:
    """The HTML of tokens."""
    spans = TokenSpans()
    spans.use("", bytes)
    tokens = [(text, Token(at, text, "", "", -1.0, 1, 1.0, ())) for at, text in enumerate(pieces)]
    return "".join(render(tokens, spans))


def split(text: str) -> list[str]:
    """Words and signs, roughly as tokenizers cut."""
    return re.findall(r"\n+|```\w*|\*\*|[ ]?\w+|[ ]?[^\w\s]|\s+", text)


def shown(source: str) -> str:
    """What a reader sees: without the signs of Markdown."""
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r'<i class="syn">.*?</i>\n?', "", source, flags=re.S)))


def test_blocks_and_words_are_marked_up_and_signs_are_hidden() -> None:
    source = page_of(split(TEXT))
    assert html.unescape(re.sub(r"<[^>]+>", "", source)) == TEXT
    assert source.count("<span") == len(split(TEXT))
    for kind in ("h1", "p", "code", "table", "rule", "p d1 bullet", "p d2 bullet", "p d1", "p d1 quote"):
        assert f'<div class="{kind}"' in source, kind
    assert '<div class="code" data-language="python">' in source
    assert "<b> bold</b>" not in source
    assert "<b>bold</b>" in source
    assert "<em>em</em>" in source
    assert "<s>strike</s>" in source
    assert "<var>12</var>" in source
    assert source.count('<div class="cell">') == 4
    text = re.sub(r"\n+", "\n", shown(source.replace('<i class="newline"></i>', "")))
    assert "Some bold and em, code, *stars* & a link(https://example.org).\nA second line." in text
    assert "quoted\nmore" in text
    assert "```" not in text
    assert "---" not in text


def test_a_token_over_two_blocks_is_one_span_of_the_second() -> None:
    source = page_of(["# Title", "\n\ntext", " goes on"])
    assert source.count("<span") == 3
    assert re.search(r'<div class="p"><span[^>]*><i class="syn">.*text</span>', source, re.S)


def test_text_without_tokens_is_marked_up_too() -> None:
    spans = TokenSpans()
    source = "".join(render([(TEXT, None)], spans))
    assert html.unescape(re.sub(r"<[^>]+>", "", source)) == TEXT
    assert source.count('<div class="cell">') == 4
    assert not len(spans)
    assert "".join(render([], spans)) == ""


def test_no_character_and_no_token_is_lost_whatever_is_written() -> None:
    chance = random.Random(38)
    for _ in range(400):
        text = "".join(chance.choices(SIGNS, k=chance.randint(1, 40)))
        pieces = []
        at = 0
        while at < len(text):
            end = at + chance.randint(1, 4)
            pieces.append(text[at:end])
            at = end
        source = page_of(pieces)
        assert source.count("<span") == len(pieces), repr(text)
        assert source.count("<div") == source.count("</div>"), repr(text)
        written = page_of([text])
        assert re.sub(r"<[^>]+>", "", source) == re.sub(r"<[^>]+>", "", written), repr(text)
        assert "<b><b>" not in source
