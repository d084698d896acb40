# ruff: noqa: E501
"""What must never reach a terminal raw, and what must not be taken for markup."""

ESCAPES = (
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1bP+q\x1b\\",
    "\x9b31m", "\x9d0;t\x9c", "\x90q\x9c", "\x1bc", "\x1b[?1049l", "\x1b[?25l", "\x1b[6n", "\x1b[5i", "\x1b_G\x1b\\",
    "\x1b^pm\x1b\\", "\x07\x08\x0b\x0c\x0e\x0f", "\r overwritten", "\x7f\x7f", "\u202egnp.exe", "\u2066a\u2069",
    "\u200fab", "\u2028next", "\u2029next", "\U000e0041\U000e007f", "\x00nul", "\x1b[1;31mred\x1b[0m", "\x85nel",
    "\x1b#8", "\x1b(0lqk", "\ud800 lone", "\x1b[?1000h", "\x1b[?2004l", "\x1b[3g", "\x1b[20;1H", "\x1b]1337;File=:\x07",
    "\x1b]4;1;?\x07", "\x1b[>0q", "\x1b%G", "\x1b[18t", "\u061c\u200e\u202a\u202b\u202c\u202d\u2067\u2068",
)  # fmt: skip
FORBIDDEN = {
    *range(0x20),
    *range(0x7F, 0xA0),
    0x61C,
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
}
FORBIDDEN |= {0x2028, 0x2029, *range(0xE0000, 0xE0080), *range(0xD800, 0xE000)}
BRACKETS = [
    opening + body + closing
    for opening in ("[", "[/", "[[", "\\[", "[@click=app.quit]")
    for closing in ("]", "", "]]", "[/]", "\\")
    for body in ("INST", "bold", "/", "red on blue", "link=http://x", "0m", "", "=", "#fff", "$primary", "@", " ", "(",
                 "]", "}{", "/INST", "b]x[/b", "not blink", "on", "\\")
]  # fmt: skip


def in_markdown(text: str) -> str:
    """A text in every place that Markdown has for one; entities that mean controls too."""
    places = f'# {text}\n- {text}\n\n> {text}\n\n`{text}` *{text}* [{text}](http://{text} "{text}")\n\n'
    code = f"```{text}\n{text}\n```\n\n&#27;[31m &#155; &#8238; &#x202e;\n\n"
    return places + code + f"| {text} | b |\n|---|---|\n| {text} | c |\n\n"
