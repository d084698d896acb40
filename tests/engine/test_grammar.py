"""Answers that match a grammar: what they are, in any company, and what the trace says of them."""

import json
import math
import random
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ropechat import Engine, Grammar, Job, Message, Role, Sampling
from ropechat.engine.grammars import check_grammar, read_grammar
from ropechat.engine.native import load_core
from ropechat.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
HOT = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_tokens": 80}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("builtin")


def texts(engine: Engine, grammar: Grammar, count: int = 6, window: int = 16) -> list[tuple[str, str | None]]:
    jobs = [Job("Once", Sampling(**HOT, seed=seed, grammar=grammar)) for seed in range(count)]
    found = [done for _, done in engine.generate_many(jobs, window=window)]
    assert [str(done.error) for done in found if done.error] == []
    return [(done.text, done.finish_reason) for done in found]


def test_json_of_a_schema(engine: Engine) -> None:
    found = texts(engine, Grammar.json_schema(PERSON), 12)
    for text, reason in found:
        assert reason == "stop"
        value = json.loads(text)
        assert list(value) == ["name", "age", "tags"]
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        assert text == compact or "\\" in text  # an escape has several spellings
        assert len(value["name"]) <= 8
        assert 0 <= value["age"] <= 120
        assert set(value["tags"]) <= {"a", "b", "é"}
    assert len(set(found)) > 6  # the model still chooses


def test_the_other_kinds(engine: Engine) -> None:
    choices = ["yes", "no", "maybe so"]
    assert {text for text, _ in texts(engine, Grammar.choices(choices))} <= set(choices)
    for text, reason in texts(engine, Grammar.regex(r"[0-9]{4}-[01][0-9]")):
        assert reason == "stop"
        assert len(text) == 7
        assert text[4] == "-"
    for text, _ in texts(engine, Grammar.lark('start: "(" /[a-c]{1,3}/ ")"')):
        assert text.startswith("(")
        assert text.endswith(")")
    for text, _ in texts(engine, Grammar.json_schema({"type": "boolean"}, flexible=True)):
        assert json.loads(text) in (True, False)


@pytest.mark.slow
def test_an_answer_is_the_same_in_any_company(engine: Engine) -> None:
    grammars = [Grammar.json_schema(PERSON), Grammar.regex("[a-z ]{20,40}"), None]
    jobs = [Job("Once" * (1 + n % 5), Sampling(**HOT, seed=n, grammar=grammars[n % 3])) for n in range(30)]
    runs = []
    for window in (1, 7, 64):
        found = [(done.ids, done.logprobs) for _, done in engine.generate_many(jobs, window=window)]
        runs.append(found)
    assert runs[0] == runs[1] == runs[2]
    alone = Sampling(**HOT, seed=3, grammar=grammars[0])
    assert tuple(step.id for step in engine.generate("Once" * 4, alone)) == runs[0][3][0]


def test_the_stage_grammar_and_raw_numbers(engine: Engine) -> None:
    choices = ["yes", "no"]
    sampling = Sampling(temperature=0.8, top_k=5, seed=4, grammar=Grammar.choices(choices))
    (free,) = engine.generate("Once", Sampling(max_tokens=1, temperature=0), top_k=50)
    step = next(iter(engine.generate("Once", sampling, top_k=50)))
    assert step.row == free.row  # raw
    names = [stage.name for stage in step.stages]
    assert names[0] == "grammar"
    first = step.stages[0]
    row = engine.probabilities(engine.tokenizer.encode("Once"))[-1]
    allowed = [
        id
        for id in range(engine.facts["vocab_size"])
        if (data := engine.token_bytes(id)) and any(choice.encode().startswith(data) for choice in choices)
    ]
    assert first.kept == len(allowed)
    assert first.mass == pytest.approx(float(sum(row[id] for id in allowed)), rel=1e-5)
    by_id = {one.id: one for one in step.candidates}
    assert by_id[step.id].cut is None
    for id, one in by_id.items():
        assert (one.cut == "grammar") == (id not in allowed)
        assert one.by_stage[0] == pytest.approx(
            float(row[id]) / first.mass if id in allowed else 0.0, rel=1e-4
        )
    kept = math.fsum(one.probability for one in by_id.values() if one.id in allowed)
    assert kept == pytest.approx(1.0) if by_id.keys() >= set(allowed) else kept < 1


def test_a_given_beginning_is_matched(engine: Engine) -> None:
    grammar = Grammar.json_schema(PERSON)
    sampling = Sampling(**HOT, seed=5, grammar=grammar)
    question = [Message(Role.USER, "Who?")]
    whole = list(engine.reply(question, sampling))
    ids = [step.id for step in whole]
    for cut in (1, len(ids) // 2, len(ids) - 1):
        tail = list(engine.reply(question, sampling, prefix=ids[:cut]))
        assert [step.id for step in tail] == ids[cut:]
        assert tail[-1].finish_reason == "stop"
    other = list(engine.reply(question, Sampling(**HOT, seed=77, grammar=grammar), prefix=ids[:4]))
    json.loads(
        "".join(said.bytes.decode() for said in engine.spell(question, ids[:4]))
        + "".join(s.text for s in other)
    )
    with pytest.raises(RequestError, match="grammar: token 2 of the text"):
        list(engine.reply(question, sampling, prefix=[ids[0], ids[0]]))


def test_a_cut_answer_says_so(engine: Engine) -> None:
    grammar = Grammar.json_schema(PERSON)
    (done,) = [done for _, done in engine.generate_many(["Once"], Sampling(max_tokens=5, grammar=grammar))]
    assert done.finish_reason == "length"
    assert grammar.parse(done.text) is None
    assert grammar.parse('{"name":1e999}') is None
    assert grammar.parse('{"name":1}') == {"name": 1}
    assert Grammar.regex("1").parse("1") is None


def test_a_cancel_between_tokens_leaves_no_trace(engine: Engine) -> None:
    sampling = Sampling(**HOT, seed=6, grammar=Grammar.json_schema(PERSON))
    expected = [step.id for step in engine.generate("Once", sampling)]
    for _ in range(3):
        timer = threading.Timer(0.005, engine.cancel)
        timer.start()
        list(engine.generate("Once", sampling))
        timer.join()
    assert [step.id for step in engine.generate("Once", sampling)] == expected


def test_a_grammar_for_a_given_text_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="grammar"):
        engine.score("Once", sampling=Sampling(grammar=Grammar.regex("a")))


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema({"type": "string", "format": "ipv9"}), "ipv9"),
        (Grammar.json_schema({"$ref": "other.json#/x"}), "other.json"),
        (Grammar.json_schema("{"), "JSON"),
        (Grammar.regex("(?=a)"), "look-around"),
        (Grammar.choices([]), "choices"),
        (Grammar.lark("start: nothing"), "nothing"),
    ],
)
def test_what_cannot_be_honoured_is_refused(engine: Engine, grammar: Grammar, words: str) -> None:
    with pytest.raises(RequestError, match=words) as told:
        check_grammar(grammar, "here")
    assert str(told.value).startswith("here: ")
    assert "\n" not in str(told.value)
    (done,) = [done for _, done in engine.generate_many(["Once"], Sampling(grammar=grammar))]
    assert isinstance(done.error, RequestError)


def hostile() -> dict[str, Callable[[], Grammar]]:
    """Grammars that are made to be slow or to overflow, by name; each is made when its test runs."""
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        nested = {"type": "array", "items": nested}
    doubled: dict[str, Any] = {
        f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, "minItems": 2}
        for n in range(40)
    }
    doubled["d40"] = {"type": "null"}
    clash = {
        "allOf": [
            {"anyOf": [{"properties": {f"p{n}{m}": {"const": m}}} for m in range(8)]} for n in range(12)
        ]
    }

    def wide() -> Grammar:
        properties = {f"key{n}": {"type": "string"} for n in range(30000)}
        return Grammar.json_schema({"type": "object", "properties": properties})

    def words() -> list[str]:
        draw = random.Random(3)
        return ["".join(draw.choices("abcdefgh", k=30)) for _ in range(20000)]

    return {
        "deep JSON": lambda: Grammar.json_schema('{"items":' * 5000 + "{}" + "}" * 5000),
        "100 arrays": lambda: Grammar.json_schema(nested),
        "4 MB": lambda: Grammar.json_schema('{"title":"' + "a" * (4 << 20) + '"}'),
        "doubled references": lambda: Grammar.json_schema({"$ref": "#/$defs/d0", "$defs": doubled}),
        "circular reference": lambda: Grammar.json_schema({"$ref": "#"}),
        "circular allOf": lambda: Grammar.json_schema(
            {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
        ),
        "intersections": lambda: Grammar.json_schema(clash),
        "30,000 properties": wide,
        "20,000 words": lambda: Grammar.json_schema({"enum": words()}),
        "20,000 choices": lambda: Grammar.choices(words()),
        "many items": lambda: Grammar.json_schema(
            {"type": "array", "minItems": 10**9, "maxItems": 2 * 10**9}
        ),
        "long string": lambda: Grammar.json_schema(
            {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}
        ),
        "many properties": lambda: Grammar.json_schema({"type": "object", "minProperties": 10**9}),
        "repeats of repeats": lambda: Grammar.regex("((a{1,1000}){1,1000}){1,1000}"),
        "exponential regex": lambda: Grammar.regex("(a|b)*a(a|b){200}"),
        "exponential pattern": lambda: Grammar.json_schema(
            {"type": "string", "pattern": "(a|b)*a(a|b){40}c"}
        ),
        "parentheses": lambda: Grammar.regex("(" * 100_000 + ")" * 100_000),
        "long regex": lambda: Grammar.regex("ab?" * 300_000),
        "nested Lark": lambda: Grammar.lark("start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
        "large multiple": lambda: Grammar.json_schema({"type": "integer", "multipleOf": 2147483648}),
        "left recursion": lambda: Grammar.lark('start: start start | "a" | '),
        "Lark rules": lambda: Grammar.lark(
            "\n".join(["start: r0", *(f"r{n}: r{n + 1} r{n + 1}" for n in range(5000)), 'r5000: "a"'])
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), hostile().items(), ids=hostile())
def test_hostile_grammars_end_soon(engine: Engine, name: str, make: Callable[[], Grammar]) -> None:
    """Each is refused or honoured within seconds of CPU time, in bounded memory; none ends the process."""
    grammar = make()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = time.process_time()
    try:
        check_grammar(grammar)
        told = "honoured"
    except RequestError as error:
        told = str(error)
        assert len(told) < 1000
    spent = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss) / 1024
    print(f"{name}: {spent:.3f} s, {grown:.0f} MiB: {told:.150}")
    assert grown < 600
    assert spent < 5  # a second where nothing else runs


@pytest.mark.slow
def test_a_grammar_beyond_the_limits_is_refused_and_the_next_one_is_compiled(engine: Engine) -> None:
    """Its states are more than a hundred million: the process that compiles it ends, this one goes on."""
    endless = Grammar.json_schema({"type": "integer", "multipleOf": 2147483648})
    with pytest.raises(RequestError, match=r"here: JSON schema: is too complex.*multipleOf"):
        check_grammar(endless, "here")
    jobs = [Job("Once", Sampling(**HOT, grammar=grammar)) for grammar in (endless, Grammar.choices(["yes"]))]
    first, second = (done for _, done in engine.generate_many(jobs, window=2))
    assert "too complex" in str(first.error)
    assert second.text == "yes"


def test_what_the_vocabulary_cannot_spell_is_said_in_plain_words(engine: Engine) -> None:
    vocabulary = load_core().Vocabulary([b"", b"a", b"b", b"1"], [], [0])
    vocabulary.compile("json_schema", ['{"type": "integer"}'])
    with pytest.raises(RequestError, match=r"must begin with '\{', which no token"):
        vocabulary.compile("json_schema", ['{"type": "object"}'])
    with pytest.raises(RequestError, match="no token of this model's tokenizer can begin one"):
        vocabulary.compile("regex", ["[xyz]+"])


def test_a_lone_surrogate_is_refused(engine: Engine) -> None:
    """As in an argument that is not UTF-8, or in JSON."""
    for grammar in (
        Grammar.regex("a\udcff"),
        Grammar.choices(["a", "\ud800"]),
        Grammar.json_schema('"\ud800"'),
    ):
        with pytest.raises(RequestError, match=r": must be valid Unicode \(got a lone surrogate\)"):
            check_grammar(grammar, "--regex")
        with pytest.raises(RequestError, match="must be valid Unicode"):
            next(iter(engine.generate("x", Sampling(grammar=grammar))))


def test_a_message_about_control_characters_is_made_in_the_process_without_files() -> None:
    with pytest.raises(RequestError, match=r"lexer error.*␀start"):
        check_grammar(Grammar("lark", ("A: /a/\n\0start: A",)))


def test_files(tmp_path: Any) -> None:
    path = tmp_path / "s.json"
    with pytest.raises(RequestError, match=r"s\.json: file not found"):
        read_grammar(path, "json_schema")
    path.write_bytes(b"\xff{}")
    with pytest.raises(RequestError, match=r"s\.json: must be UTF-8"):
        read_grammar(path, "json_schema")
    path.write_bytes(b" " * (2 << 20))
    with pytest.raises(RequestError, match=r"s\.json: must be at most"):
        read_grammar(path, "json_schema")
    path.write_text('{"not": {}}')
    with pytest.raises(RequestError, match=r"s\.json: .*not"):
        read_grammar(path, "json_schema")
    path.write_text('\ufeff{"type": "null"}', encoding="utf-8")
    assert read_grammar(path, "json_schema", flexible=True) == Grammar.json_schema(
        path.read_text("utf-8-sig"), flexible=True
    )


def test_settings_with_a_grammar_survive_as_json() -> None:
    from dataclasses import asdict

    sampling = Sampling(grammar=Grammar.choices(["a", "b"]))
    assert Sampling(**json.loads(json.dumps(asdict(sampling)))) == sampling
    for bad in (
        5,
        {"kind": "xml", "source": ["a"]},
        {"kind": "regex", "source": "a"},
        {"x": 1},
        {"kind": "regex", "source": []},
    ):
        with pytest.raises(ValueError, match="grammar"):
            Sampling(grammar=bad)  # type: ignore[arg-type]
