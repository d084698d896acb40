"""/schema: what the answers of the chat must match."""

import json
from pathlib import Path
from typing import Any

from fakes import FakeEngine

from ropechat.sampling.grammar import Grammar


async def test_a_schema_holds_from_the_next_answer_on(chat: Any, tmp_path: Path) -> None:
    path = tmp_path / "person.json"
    path.write_text(json.dumps({"type": "object"}))
    engine = FakeEngine("a b c d")
    async with chat(engine, size=(100, 30)) as c:
        await c.ask("/schema")
        assert "answers are any text" in c.line("footer")
        await c.ask(f"/schema {path}")
        assert "answers are JSON of the schema person.json" in c.line("footer")
        await c.ask("Who?")
        await c.idle()
        grammar = Grammar.json_schema(path.read_text())
        assert engine.settings[-1].grammar == grammar
        await c.ask("/regen")
        await c.idle()
        assert engine.settings[-1].grammar == grammar  # a new version, too
        path.write_text('{"uniqueItems": true}')
        await c.ask(f"/schema {path}")
        assert "uniqueItems" in c.line("footer")
        assert c.app.session.sampling.grammar == grammar
        await c.ask("/schema off")
        await c.ask("And now?")
        await c.idle()
        assert engine.settings[-1].grammar is None
        kept = [node.sampling for node in c.app.session.tree.nodes.values() if node.sampling is not None]
        assert [one.grammar for one in kept] == [grammar, grammar, None]
