"""A page in a headless Chromium asks the server: only one whose site is allowed gets an answer."""

import json
from pathlib import Path

import pytest
from api_server import Running
from browser import Browser

from ropechat.batch.line import CHAT
from ropechat.engine.engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ASK = """(async () => {{
  const body = {body};
  const headers = {{"Content-Type": "application/json", "Authorization": "Bearer key"}};
  const response = await fetch("{url}", {{method: "POST", headers, body: JSON.stringify(body)}});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {{
    const {{done, value}} = await reader.read();
    if (done) return text;
    text += value;
  }}
}})().catch(error => error.name)"""


def test_a_page_of_an_allowed_site_streams(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<title>A page</title>")
    body = {"messages": [{"role": "user", "content": "What is RoPE?"}], "max_tokens": 4, "stream": True}
    browser = Browser(tmp_path / "browser")
    try:
        page = browser.open(tmp_path / "page.html")  # whose origin is null
        found = []
        for origins in ((), ("null",)):
            running = Running(engine, origins=frozenset(origins))
            try:
                url = "http://{}:{}".format(*running.address) + CHAT
                found.append(page.value(ASK.format(body=json.dumps(body), url=url)))
            finally:
                running.close()
    finally:
        browser.close()
    refused, streamed = found
    assert refused == "TypeError"
    assert streamed.startswith("data: ")
    assert streamed.endswith("data: [DONE]\n\n")
