# ruff: noqa: E501
"""Strings that try to become markup, script, a style or a request in a page."""

from payloads import ESCAPES

MARKUP = (
    "<script>{}</script>", "</script><script>{}</script>", "<img src=x onerror={}>", "<svg onload={}>", "</pre><b>",
    "--><script>{}</script>", "]]><script>{}</script>", "<!--", "<!-- {} -->", "<![CDATA[", "&lt;script&gt;",
    '" onmouseover="{}" x="', "' onfocus='{}' autofocus='", "<iframe src='javascript:{}'>", "<a href='javascript:{}'>x</a>",
    "<style>*{{display:none}}</style>", "</style><script>{}</script>", "<link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>", "<base href=http://127.0.0.1:9/>",
    "<object data=http://127.0.0.1:9/></object>", "<embed src=http://127.0.0.1:9/>", "<video src=http://127.0.0.1:9/>",
    "<form action=http://127.0.0.1:9/><input type=submit autofocus>", "<details open ontoggle={}>", "<math><mi xlink:href=",
    "<template><script>{}</script></template>", "<plaintext>", "<textarea>", "<title></title>", "</title><script>{}</script>",
    "<noscript><p title='</noscript><img src=x onerror={}>'>", "<x\x00y onclick={}>", "\u2028<script>{}</script>",
    "\\u003cscript\\u003e{}", "</ScRiPt ><ScRiPt>{}</ScRiPt>", "<isindex action=x>", "&#x3c;img src=x&#x3e;", "&quot;&apos;",
    "url(http://127.0.0.1:9/)", "@import 'http://127.0.0.1:9/';", "__proto__", "constructor", "${{{}}}", "`{}`",
)  # fmt: skip
CALL = "window.hacked=1"
AROUND = ("{}", " {}", "{}\n", "a{}b", "\U0001f642{}", '{}"', "'{}", "{}{}", "<{}>", "{}\u202e\u0301")


def strings(count: int = 500) -> list[str]:
    """That many different strings: markup and control sequences, in different surroundings."""
    kinds = [kind.format(CALL) for kind in MARKUP] + list(ESCAPES)
    made = [around.replace("{}", kind) for around in AROUND for kind in kinds]
    assert len(set(made)) >= count
    return list(dict.fromkeys(made))[:count]
