"""What the built-in model is trained on about keys and commands is what the registry says."""

import random
import re
from collections.abc import Iterator

import pytest

from ropechat.tui.commands.registry import ALL, SYNONYMS, by_slash
from training import commands, program
from training.material import FOLDER, table
from training.patterns import expand

KEY = re.compile(r"(?<![\w-])(?:F\d{1,2}\b|(?:Ctrl|Alt|Shift)\s?[+-]\s?\w+|Control-\w|\^[A-Za-z]\b)")
TYPED = re.compile(r"(?<![\w./~{}<:|-])/([a-z_]+)\b(?![/.\w])")
FILES = sorted(path.stem for path in FOLDER.glob("*.toml") if "topic" in table(path.stem))
EDITING = program.text_field_keys() - set(program.KEYS)  # Textual's, so that the registry has none of them


def topics() -> Iterator[tuple[str, dict]]:
    for name in FILES:
        for entry in commands.topics() if name == "commands" else table(name)["topic"]:
            yield name, entry


def texts(entry: dict, *fields: str) -> Iterator[str]:
    for field in fields:
        value = entry.get(field, [])
        yield from [value] if isinstance(value, str) else value


def test_every_command_has_a_question_and_an_answer_with_its_key() -> None:
    for command in ALL:
        answer = program.sentence(command)
        names = program.names_of(command) or [f"/{command.slash}"]
        assert all(name in answer for name in names), answer
        assert not command.slash or f"/{command.slash}" in answer
        assert answer.endswith(".")
        assert "{" not in answer
        if command.slash:
            assert command.slash in program._SLASHES
        for name in program.names_of(command):
            assert name in program.KEYS
            assert name in program.key_answer(name)


@pytest.mark.slow
def test_the_source_asks_about_every_key_and_typed_command() -> None:
    rng = random.Random(1)
    turns = [turn for _ in range(12_000) for turn in program.about(rng, "train") or []]
    asked = {turn.kind.partition(".")[2] for turn in turns}
    typed = {command.slash for command in ALL if command.slash} | set(SYNONYMS)
    assert {*program.KEYS, *program.IDLE, *(f"typed.{name}" for name in typed)} <= asked
    for turn in turns:
        assert all(word in turn.question for word in turn.copied)
        assert all(re.search(key, turn.answer) for key in turn.keys), turn


def test_names_of_keys() -> None:
    names = ["ctrl+x", "f1", "escape", "enter", "alt+enter", "left_square_bracket", "equals_sign", "R", "f"]
    wanted = ["Ctrl+X", "F1", "Esc", "Enter", "Alt+Enter", "[", "=", "R", "f"]
    assert [program.key_name(name) for name in names] == wanted
    assert {"^x", "ctrl x", "control-x", "CTRL+X"} <= set(program.typed_forms("Ctrl+X"))
    assert "f 5" in program.typed_forms("F5")


def test_a_wrong_placeholder_is_an_error() -> None:
    assert program.fill_names("{chat.stop} {/fork} {x}") == "Esc /fork {x}"
    assert program.fill_names("{composer.newline#2}") == "Alt+Enter"
    assert program.fill_names("{chat.new}", pattern=True) == r"Ctrl\+N"
    for text in ("{chat.stopp}", "{/frok}", "{chat.export}", "{chat.new#2}"):
        with pytest.raises(ValueError, match=r"registry|typed name"):
            program.fill_names(text)


def test_hand_written_sentences_belong_to_help_texts_of_the_registry() -> None:
    assert set(table("program")["says"]) <= {command.help for command in ALL}
    assert not [name for name in table("program")["no_slash"] if by_slash(name) or name in SYNONYMS]
    for text in table("program")["says"].values():
        filled = program.fill_names(text)
        assert set(KEY.findall(filled)) <= set(program.KEYS), text
        assert all(by_slash(name) for name in TYPED.findall(filled)), text


def test_topics_name_keys_and_typed_commands_by_placeholders() -> None:
    """A literal key would stay when the registry changes."""
    for _, entry in topics():
        program.filled(entry)
        for text in texts(entry, "answer", "more", "example"):
            assert {*KEY.findall(text)} <= EDITING, f"{entry['id']}: {text}"
            assert not [one for one in TYPED.findall(text) if by_slash(one)], f"{entry['id']}: {text}"


def test_answers_have_their_keys() -> None:
    for file, entry in topics():
        made = program.filled(entry)
        for answer in made["answer"]:
            missing = [key for key in made["keys"] if not re.search(key, answer, re.IGNORECASE)]
            assert not missing, (file, entry["id"], answer, missing)
        for pattern in made["ask"]:
            assert expand(pattern, random.Random(1))
