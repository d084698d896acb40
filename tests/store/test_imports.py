"""Chats from the files of ChatGPT, Open WebUI and llm, as they are and as a stranger may send them."""

import copy
import json
import random
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropechat.conversation import Role
from ropechat.errors import FileAccessError, HistoryError
from ropechat.store.imports import read, said
from ropechat.store.imports.read import Imported, read_file
from ropechat.store.queries import Chat
from ropechat.store.store import Store


def told(chat: Chat) -> list[tuple[str, str]]:
    """The branch on screen."""
    return [(str(node.role), node.text) for node in chat.tree.path()]


def written(tmp_path: Path, value: Any, name: str = "export.json") -> Path:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# ---- ChatGPT


def message(role: str, text: Any, **more: Any) -> dict[str, Any]:
    content = text if isinstance(text, dict) else {"content_type": "text", "parts": [text]}
    metadata = more.pop("metadata", {})
    return {
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": 1750537483.1,
        "content": content,
        "metadata": metadata,
        "recipient": "all",
        **more,
    }


def mapping(*nodes: tuple[str, str | None, Any]) -> dict[str, Any]:
    return {id: {"id": id, "parent": parent, "message": one, "children": []} for id, parent, one in nodes}


HIDDEN = {"is_visually_hidden_from_conversation": True}
PROFILE = {"content_type": "user_editable_context", "user_profile": "", "user_instructions": "Be short."}
PICTURE = {
    "content_type": "multimodal_text",
    "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "What is this?"],
}
SEARCH = {"content_type": "code", "language": "python", "text": "search('rope')"}
CHATGPT: dict[str, Any] = {
    "title": "Rotary embeddings",
    "create_time": 1750537482.9,
    "current_node": "a2",
    "default_model_slug": "gpt-4o",
    "mapping": mapping(
        ("root", None, None),
        ("s", "root", message("system", "", metadata=HIDDEN)),
        ("p", "s", message("user", PROFILE, metadata=HIDDEN)),
        ("q", "p", message("user", "What is RoPE?")),
        ("call", "q", message("assistant", SEARCH, recipient="python")),
        ("tool", "call", message("tool", "found it")),
        ("a", "tool", message("assistant", "Rotary\ue200cite\ue202turn0\ue201 embeddings.")),
        ("more", "a", message("assistant", "They turn pairs.", metadata={"model_slug": "o3"})),
        ("q2", "more", message("user", PICTURE)),
        ("a2", "q2", message("assistant", "A picture.")),
        ("b", "p", message("user", "What is rope?")),
        ("b2", "b", message("assistant", "A cord.")),
    ),
}


def test_chatgpt_with_its_branches_and_tools(tmp_path: Path) -> None:
    found = read_file(written(tmp_path, [CHATGPT]))
    [chat] = found.chats
    assert (found.source, found.lost, found.faults, chat.title) == ("ChatGPT", 2, [], "Rotary embeddings")
    assert told(chat) == [
        ("user", "What is RoPE?"),
        ("assistant", "Rotary embeddings.\n\nThey turn pairs."),
        ("user", "What is this?"),
        ("assistant", "A picture."),
    ]
    assert [node.text for node in chat.tree.children(None)] == ["What is RoPE?", "What is rope?"]
    assert [node.model for node in chat.tree.path()] == ["", "o3", "", "gpt-4o"]
    assert all(node.created == pytest.approx(1750537483.1) for node in chat.tree.path())
    assert found.describe() == (
        "1 chat from ChatGPT; 2 messages are not text (tools, pictures) or have no question: left out"
    )


@pytest.mark.parametrize(
    "names", [["conversations.json"], ["x/conversations-000.json", "x/conversations-001.json"]]
)
def test_chatgpt_as_the_archive_that_one_gets(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chat.html", "<html>")
        archive.writestr("shared_conversations.json", "[]")
        for number, name in enumerate(names):
            archive.writestr(name, json.dumps([{**CHATGPT, "title": f"chat {number}"}]))
    found = read_file(tmp_path / "export.zip")
    assert (found.source, [chat.title for chat in found.chats]) == (
        "ChatGPT",
        [f"chat {number}" for number in range(len(names))],
    )


def test_one_bad_chat_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = {**CHATGPT, "mapping": {"a": {"message": message("user", 5), "parent": None}}}
    empty = {**CHATGPT, "mapping": mapping(("root", None, None))}
    found = read_file(written(tmp_path, [CHATGPT, bad, empty]))
    assert len(found.chats) == 1
    assert found.faults == ["[1].mapping.a.message.content.parts[0]: must be a string (got 5)"]
    with pytest.raises(HistoryError, match=r"export\.json: \[0\]\.mapping\.a.*must be a string"):
        read_file(written(tmp_path, [bad]))


# ---- Open WebUI


def webui(**messages: tuple[str | None, str, Any]) -> dict[str, Any]:
    return {
        "id": "1",
        "title": "A chat",
        "created_at": 1744577550,
        "chat": {
            "models": ["llama3.2"],
            "params": {"system": "Be brief."},
            "history": {
                "currentId": list(messages)[-1],
                "messages": {
                    id: {"id": id, "parentId": parent, "role": role, "content": content, "model": "llama3.2"}
                    | {"timestamp": 1744577557, "childrenIds": []}
                    for id, (parent, role, content) in messages.items()
                },
            },
        },
    }


THOUGHT = '<details type="reasoning" done="true">\n<summary>Thought</summary>\nhm</details>\nIn a box.'
WEBUI = webui(
    a2=("q", "assistant", "Another."),
    q=(None, "user", "Where?"),
    a=("q", "assistant", THOUGHT),
    q2=("a", "user", [{"type": "text", "text": "Which box?"}, {"type": "image_url", "image_url": {}}]),
)


def test_open_webui(tmp_path: Path) -> None:
    found = read_file(written(tmp_path, [WEBUI]))
    [chat] = found.chats
    assert (found.source, found.lost, chat.title) == ("Open WebUI", 0, "A chat")
    assert told(chat) == [
        ("system", "Be brief."),
        ("user", "Where?"),
        ("assistant", "In a box."),
        ("user", "Which box?"),
    ]
    assert len(chat.tree.siblings(chat.tree.path()[2].id)) == 2
    assert chat.tree.path()[2].model == "llama3.2"
    assert chat.tree.path()[2].reasoning == "hm"
    [alone] = read_file(written(tmp_path, WEBUI["chat"])).chats
    assert told(alone) == told(chat)
    early = {"title": "Early", "chat": {"messages": [{"role": "user", "content": "Hi"}]}}
    assert told(read_file(written(tmp_path, [early])).chats[0]) == [("user", "Hi")]


def test_text_that_looks_like_a_folded_block_stays(tmp_path: Path) -> None:
    for text in ('<details type="note">a</details> b', '<details type="reasoning"> never closed'):
        chat = read_file(written(tmp_path, [webui(q=(None, "user", "x"), a=("q", "assistant", text))])).chats[
            0
        ]
        assert chat.tree.path()[-1].text == text


# ---- llm


def row(
    number: int, prompt: str, response: str, conversation: str | None = "c", **more: Any
) -> dict[str, Any]:
    return {
        "id": f"{number:03}",
        "model": "echoer",
        "conversation_id": conversation,
        "conversation_name": "the name",
        "datetime_utc": f"2026-11-22T21:45:{number:02}.5+00:00",
        "prompt": prompt,
        "system": "Be brief.",
        "response": response,
        **more,
    }


def test_llm_logs_as_json(tmp_path: Path) -> None:
    fragments = [{"hash": "h", "content": "a text\n", "aliases": []}]
    rows = [
        row(2, "And a byte?", "Eight bits."),
        row(1, "What is a token?", "A piece.", prompt_fragments=fragments),
        row(3, "a text\n\nalready there", "Yes.", None, prompt_fragments=fragments, system=None),
    ]
    found = read_file(written(tmp_path, rows))
    assert (found.source, found.lost, len(found.chats)) == ("llm", 0, 2)
    assert told(found.chats[0]) == [
        ("system", "Be brief."),
        ("user", "a text\n\nWhat is a token?"),
        ("assistant", "A piece."),
        ("user", "And a byte?"),
        ("assistant", "Eight bits."),
    ]
    assert told(found.chats[1]) == [("user", "a text\n\nalready there"), ("assistant", "Yes.")]
    assert found.chats[0].tree.path()[-1].created == 1795383902.5


OLD = """
CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, response TEXT,
                        conversation_id TEXT, datetime_utc TEXT);
CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT);
CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
INSERT INTO conversations VALUES ('c', 'old', 'm');
INSERT INTO fragments VALUES (1, 'h', 'a fragment');
INSERT INTO prompt_fragments VALUES ('r1', 1, 0);
INSERT INTO responses VALUES ('r1', 'm', 'one?', NULL, '1', 'c', '2024-05-01T10:00:00');
INSERT INTO responses VALUES ('r2', 'm', 'two?', NULL, '2', 'c', '2024-05-01T10:00:01');
"""
NEW = """
CREATE TABLE messages (hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT);
CREATE TABLE parts (id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT, text TEXT,
                    payload TEXT);
CREATE TABLE threads (id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT, datetime_utc TEXT);
CREATE TABLE turns (id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT, tip_message_hash TEXT,
                    model TEXT, datetime_utc TEXT);
INSERT INTO messages VALUES ('s', NULL, 'system'), ('q', 's', 'user'), ('a', 'q', 'assistant'),
                            ('t', 'a', 'tool'), ('b', 't', 'assistant');
INSERT INTO parts VALUES (1, 's', 0, 'text', 'Be brief.', NULL), (3, 'a', 0, 'text', 'I look.', NULL),
                         (2, 'q', 0, 'text', NULL, '{"text_ref": [{"fragment": 1}, {"literal": "\\nnew?"}]}'),
                         (4, 'b', 0, 'text', 'Found.', NULL), (5, 'a', 1, 'tool_call', NULL, '{}');
INSERT INTO threads VALUES ('x', 'new', 'b', '2026-11-22');
INSERT INTO turns VALUES ('u', 'x', 'q', 'a', 'm', '2026-11-22T21:45:27+00:00');
"""


def database(path: Path, source: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(source)
    connection.close()
    return path


def test_llm_logs_of_both_ages_in_one_file(tmp_path: Path) -> None:
    path = database(tmp_path / "logs.db", OLD + NEW)
    before = path.read_bytes()
    found = read_file(path)
    assert (found.source, found.lost, [chat.title for chat in found.chats]) == ("llm", 1, ["old", "new"])
    assert told(found.chats[0])[:2] == [("user", "a fragment\n\none?"), ("assistant", "1")]
    assert told(found.chats[1]) == [
        ("system", "Be brief."),
        ("user", "a fragment\nnew?"),
        ("assistant", "I look.\n\nFound."),
    ]
    assert all(node.created > 1.79e9 for node in found.chats[1].tree.path())
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["logs.db"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "tip_message_hash TEXT,\n                    model",
            "hash TEXT,\n                    model",
            "no such column",
        ),
        ("message_hash TEXT, position", "msg TEXT, position", "no such column"),
        ("'Be brief.'", "CAST(x'ff' AS TEXT)", "UTF-8"),
        ("VALUES ('x', 'new'", "VALUES ('x', x'00'", ""),
    ],
)
def test_logs_that_llm_does_not_write_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in NEW
    path = database(tmp_path / "logs.db", OLD + NEW.replace(old, new))
    if said:
        with pytest.raises(HistoryError, match=rf"logs\.db: not a readable logs\.db of llm .*{said}"):
            read_file(path)
    else:  # only one chat is concerned
        assert read_file(path).faults == ["threads[0].name: must be a string (got b'\\x00')"]


def test_a_schema_that_is_not_text_is_named(tmp_path: Path) -> None:
    """SQLite's message quotes what it cannot read."""
    path = database(tmp_path / "logs.db", OLD)
    path.write_bytes(
        path.read_bytes().replace(
            b"CREATE TABLE fragments (", b"CREATE TABLE \xff\xff\xff\xff\xff\xff\xff\xff\xff ("
        )
    )
    with pytest.raises(HistoryError, match=r"logs\.db: "):
        read_file(path)


@pytest.mark.parametrize("time", ["1e300", "-1e300", "Infinity", "NaN", "253402300800"])
def test_a_time_that_no_calendar_has(tmp_path: Path, time: str) -> None:
    path = tmp_path / "chat.json"
    node = f'{{"id": "1", "parent": null, "role": "user", "text": "x", "created": {time}}}'
    path.write_text(f'{{"ropechat": 1, "title": "t", "current": "1", "nodes": [{node}]}}')
    with pytest.raises(HistoryError, match=r"nodes\[0\]\.created: must be"):
        read_file(path)


# ---- what strangers send


def test_a_tree_that_is_none(tmp_path: Path) -> None:
    """Circles, unknown parents, an answer first, system texts in the middle."""
    messages = {
        "x": said.Said("y", Role.USER, "in a circle"),
        "y": said.Said("x", Role.USER, "in a circle"),
        "self": said.Said("self", Role.USER, "its own parent"),
        "a": said.Said(None, Role.ASSISTANT, "answers nothing"),
        "q": said.Said("nowhere", Role.USER, "asked"),
        "s": said.Said("q", Role.SYSTEM, "too late"),
        "b": said.Said("s", Role.ASSISTANT, "answered"),
    }
    chat, lost = said.build_chat("t", messages, "b")
    assert chat is not None
    assert (told(chat), lost) == ([("user", "asked"), ("assistant", "answered")], 5)
    assert said.build_chat("t", {"a": said.Said(None, Role.SYSTEM, "x")}, None) == (None, 0)


def test_a_chain_of_answers_does_not_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "MAX_TEXT", 10_000)
    messages = {"q": said.Said(None, Role.USER, "x")}
    for at in range(500):  # every answer begins the next, and every one is followed by a question
        messages[f"a{at}"] = said.Said(f"a{at - 1}" if at else "q", Role.ASSISTANT, "y" * 10)
        messages[f"q{at}"] = said.Said(f"a{at}", Role.USER, "z")
    with pytest.raises(HistoryError, match="must be at most 10000 characters"):
        said.build_chat("t", messages, None)


def zipped(path: Path, **files: str) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_", ".", 1), text)
    return path.read_bytes()


def test_hostile_files_give_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_BYTES", 1 << 20)
    good = zipped(tmp_path / "a.zip", conversations_json=json.dumps([CHATGPT]))
    encrypted = bytearray(good)
    at = encrypted.index(b"PK\1\2")
    encrypted[6] |= 1
    encrypted[at + 8] |= 1
    view = OLD.replace("CREATE TABLE responses", "CREATE TABLE other") + (
        "CREATE VIEW responses AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT i FROM n;"
    )
    with zipfile.ZipFile(tmp_path / "h.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("conversations.json", json.dumps([CHATGPT]))
    lzma = bytearray((tmp_path / "h.zip").read_bytes())
    lzma[60:70] = bytes(10)
    files = {
        "lzma.zip": bytes(lzma),
        "bomb.zip": zipped(tmp_path / "b.zip", conversations_json=" " * (2 << 20)),
        "none.zip": zipped(tmp_path / "c.zip", other_json="[]"),
        "encrypted.zip": bytes(encrypted),
        "cut.zip": good[: len(good) // 2],
        "text.zip": zipped(tmp_path / "d.zip", conversations_json="[{"),
        "cut.db": database(tmp_path / "e.db", OLD).read_bytes()[:5000],
        "empty.db": database(tmp_path / "f.db", "CREATE TABLE x (y);").read_bytes(),
        "view.db": database(tmp_path / "g.db", view.split("INSERT")[0]).read_bytes(),
        "number.db": database(tmp_path / "h.db", OLD + "UPDATE responses SET model = x'ff00';").read_bytes(),
        "long.json": b" " * (2 << 20),
        "deep.json": b'[{"mapping": ' + b"[" * 100_000,
        "empty.json": b"[]",
        "other.json": b'[{"role": "user", "content": "Hi"}]',
        "mapping.json": b'[{"mapping": []}]',
        "history.json": b'[{"chat": {"history": 5}}]',
        "rows.json": json.dumps([row(1, "a", "b", model=5)]).encode(),
    }
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(HistoryError) as caught:
            read_file(path)
        line = str(caught.value)
        assert line.startswith(f"{path}: "), name
        assert "\n" not in line, name
        assert len(line) < 300 + len(str(path)), name
    with pytest.raises(FileAccessError):
        read_file(tmp_path)


def spoil(draw: random.Random, value: Any) -> Any:
    """The value with one part of it replaced by something else."""
    other = draw.choice([None, True, -1, 2.5, "", "\ud800\x1b", [], {}, [[]], {"a": 1}, 10**400])
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        return {**value, name: spoil(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], spoil(draw, value[at]), *value[at + 1 :]]
    return other


@pytest.mark.slow
@pytest.mark.parametrize("good", [CHATGPT, WEBUI, row(1, "a", "b")], ids=["chatgpt", "webui", "llm"])
def test_spoiled_files_are_read_or_refused(tmp_path: Path, good: dict[str, Any]) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, path = random.Random(seed), tmp_path / "export.json"
    for _ in range(300):
        path.write_text(json.dumps([spoil(draw, copy.deepcopy(good)), copy.deepcopy(good)]))
        try:
            found = read_file(path)
        except HistoryError as error:
            found = Imported("", faults=[str(error)])
        assert not any("\n" in fault for fault in found.faults)
        assert all(chat.tree.path() for chat in found.chats)


# ---- into the store


def test_thousands_have_ids_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [said.build_chat("t", {"q": said.Said(None, Role.USER, "x")}, None)[0] for _ in range(3)]
    numbers = iter([5, 5, 5, 6, 7])
    monkeypatch.setattr("ropechat.store.imports.read.secrets.token_hex", lambda _: f"{next(numbers):08x}")
    store = Store(tmp_path)
    try:
        chats = [Chat("00000005", "t", one.tree) for one in made if one is not None]
        assert list(Imported("", chats).keep(store)) == ["00000005", "00000006", "00000007"]
        assert len(store.conversations().result(60)) == 3
    finally:
        store.close()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Callable[..., Any]) -> None:
    from ropechat.cli import main

    monkeypatch.setenv("ROPECHAT_DATA", str(tmp_path / "data"))
    bad = {**CHATGPT, "mapping": 5}
    assert main(["chats", "import", str(written(tmp_path, [CHATGPT, bad, CHATGPT]))]) == 3
    out, err = capfd.readouterr()  # type: ignore[attr-defined]
    assert len(set(out.split())) == 2
    assert "[1].mapping: must be an object (got 5); this chat was not imported" in err
    assert "note: 2 chats from ChatGPT; 4 messages" in err
    assert main(["chats", "list"]) == 0
    assert capfd.readouterr()[0].count("2025-06-21") == 2  # type: ignore[attr-defined]
