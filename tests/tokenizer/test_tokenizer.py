"""Text, ids and bytes: incremental text is exact, bytes and spans are those of the text."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from model_folders import GOLDEN, adds_bos, byte_folder, byte_tokenizer, write_folder

from ropechat.errors import RequestError, TokenizerError, UnsafePathError
from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer.alignment import byte_spans

DETOK = json.loads((GOLDEN / "detok" / "detok.json").read_text())["tokenizers"]
KINDS = sorted(DETOK)
STRANGE = "ab  \n▁Ġ日本語😀👨‍👩é́ñ</s><s>\u2028\x00½ﬁ"


def golden(kind: str) -> Tokenizer:
    return Tokenizer.load(GOLDEN / "detok" / kind, DETOK[kind]["vocab"])


def streamed(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    stream = tokenizer.stream(prompt)
    return [*(stream.push(id) for id in ids), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
def test_golden_text_whole_and_streamed(kind: str) -> None:
    tokenizer = golden(kind)
    for case in DETOK[kind]["cases"]:
        assert tokenizer.encode(case["text_in"]) == case["ids"]
    for case in DETOK[kind]["cases"] + DETOK[kind]["invalid_utf8"]:
        pieces = streamed(tokenizer, case["ids"])
        assert tokenizer.decode(case["ids"]) == case["text"]
        assert "".join(pieces) == case["text"]
        assert "\ufffd" in case["text"] or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_continuation_from_every_position(kind: str) -> None:
    tokenizer, exact = golden(kind), 0
    for case in DETOK[kind]["cases"] + DETOK[kind]["invalid_utf8"]:
        for cut in range(len(case["ids"]) + 1):
            before = tokenizer.decode(case["ids"][:cut])
            text = "".join(streamed(tokenizer, case["ids"][cut:], case["ids"][:cut]))
            if case["text"].startswith(before):
                assert before + text == case["text"]
                exact += 1
            assert "\ufffd" in case["text"] or "\ufffd" not in text
    assert exact > 200


@pytest.mark.parametrize("kind", KINDS)
def test_random_ids_stream_as_they_decode(kind: str) -> None:
    tokenizer, rng = golden(kind), random.Random(3)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(12)]
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_ids_count_as_pushed_ones(kind: str) -> None:
    tokenizer, rng = golden(kind), random.Random(4)
    known = [id for case in DETOK[kind]["cases"] + DETOK[kind]["invalid_utf8"] for id in case["ids"]]
    for hold in (False, True):
        for _ in range(300):
            ids = [rng.choice(known) for _ in range(rng.randrange(12))]
            prompt, cut = rng.choices(known, k=rng.randrange(4)), rng.randrange(len(ids) + 1)
            pushed, skipped = tokenizer.stream(prompt), tokenizer.stream(prompt)
            for stream in (pushed, skipped):
                vars(stream).update({"_hold": hold} if "_hold" in vars(stream) else {})
            for id in ids[:cut]:
                pushed.push(id)
            skipped.skip(ids[:cut])
            assert [skipped.push(id) for id in ids[cut:]] == [pushed.push(id) for id in ids[cut:]]
            assert skipped.flush() == pushed.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_spans_cover_the_text(kind: str) -> None:
    tokenizer, rng = golden(kind), random.Random(5)
    texts = [case["text_in"] for case in DETOK[kind]["cases"]]
    texts += ["".join(rng.choices(STRANGE, k=rng.randrange(25))) for _ in range(300)]
    for text in texts:
        data, tokens = text.encode(), tokenizer.encode_aligned(text)
        assert [token.id for token in tokens] == tokenizer.encode(text)
        assert b"".join(data[start:end] for start, end in (token.span for token in tokens)) == data
        decoded = tokenizer.decode([token.id for token in tokens]).encode()
        again = tokenizer.align([token.id for token in tokens])
        assert b"".join(decoded[start:end] for start, end in (token.span for token in again)) == decoded


def test_token_bytes_concatenate_to_the_input() -> None:
    tokenizer, rng = golden("bl"), random.Random(8)
    for _ in range(300):
        text = "".join(rng.choices(STRANGE, k=20))
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_token_bytes_of_each_kind() -> None:
    sp = golden("sp")
    assert [sp.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert sp.token_bytes(1) == b"<s>"
    assert sp.token_bytes(sp.encode("a hello", add_special_tokens=False)[0]) == b" a"
    assert sp.token_bytes(10_000) == b""
    with pytest.raises(RequestError):
        sp.token_bytes(-1)


def test_roles_and_bos(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(
        byte_folder(tmp_path, tokenizer=byte_tokenizer(post_processor=adds_bos())), 260
    )
    assert tokenizer.adds_bos
    tokens = tokenizer.encode_aligned("a</s>b")
    assert [(t.id, t.span, t.role) for t in tokens] == [
        (256, (0, 0), "bos"),
        (97, (0, 1), "text"),
        (257, (1, 5), "special"),
        (98, (5, 6), "text"),
    ]
    assert tokenizer.decode([256, 97, 257]) == "a"
    assert tokenizer.decode([256, 97], skip_special_tokens=False) == "<s>a"
    assert not golden("bl").adds_bos


def test_streaming_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen = golden("sp"), 0
    decode = tokenizer._decode_all

    def counted(ids: Sequence[int]) -> str:
        nonlocal seen
        seen += len(ids)
        return decode(ids)

    monkeypatch.setattr(tokenizer, "_decode_all", counted)
    ids = tokenizer.encode("one little word after another, é日. " * 50)
    streamed(tokenizer, ids)
    assert seen < 8 * len(ids)


def test_without_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_folder(tmp_path), 260)
    assert not tokenizer.present
    assert tokenizer.vocab_size == 0
    assert streamed(tokenizer, [1, 2]) == ["", "", ""]
    for call in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.decode([1]),
        lambda: tokenizer.token_bytes(1),
    ):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json: not found"):
            call()


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        golden("bl").encode("a\udc80")
    with pytest.raises(RequestError, match="4,194,304 bytes"):
        golden("bl").encode("a" * (4 << 20) + "a")
    with pytest.raises(RequestError, match="ids"):
        golden("bl").decode([-1])


def _model(**changes: Any) -> dict[str, Any]:
    return byte_tokenizer(model={**byte_tokenizer()["model"], **changes})


def _added(**changes: Any) -> dict[str, Any]:
    return byte_tokenizer(added_tokens=[{**byte_tokenizer()["added_tokens"][0], **changes}])


FAULTS = {
    "model": byte_tokenizer(model=None),
    "model.type": _model(type="Foo"),
    "model.vocab": _model(vocab={}),
    "model.merges[0]": _model(merges=["a"]),
    "model.merges[1]": _model(merges=["a b", ["a", "zz"]], vocab={**_model()["model"]["vocab"], "ab": 200}),
    "added_tokens[0]": _added(id=260),
    "post_processor.single": byte_tokenizer(post_processor={**adds_bos(), "special_tokens": {}}),
    "normalizer.Precompiled": byte_tokenizer(
        normalizer={"type": "Precompiled", "precompiled_charsmap": None}
    ),
    "truncation.max_length": byte_tokenizer(truncation={"max_length": -1}),
    "padding.strategy": byte_tokenizer(padding={"strategy": {"Fixed": 2**40}}),
    "pre_tokenizer Regex": byte_tokenizer(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    ),
}


@pytest.mark.parametrize("field", FAULTS)
def test_faults_name_file_and_field(field: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if field == "model.merges[1]":
        FAULTS[field]["model"]["vocab"]["È"] = 256  # the id that "ab" took
    folder = write_folder(tmp_path, tokenizer=FAULTS[field])
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(folder, 260)
    assert str(caught.value).startswith(f"{folder / 'tokenizer.json'}: {field}: ")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_ids_outside_the_models_vocabulary(tmp_path: Path) -> None:
    folder = byte_folder(tmp_path)
    with pytest.raises(TokenizerError, match="must be from 0 to 258"):
        Tokenizer.load(folder, 259)


def test_a_hole_in_the_vocabulary_moves_no_id(tmp_path: Path) -> None:
    """The library alone would number <s> 255 here."""
    data = _model()
    del data["model"]["vocab"]["A"]
    tokenizer = Tokenizer.load(byte_folder(tmp_path, tokenizer=data), 260)
    assert tokenizer.encode("B<s>") == [66, 256]
    assert (tokenizer.token_bytes(65), tokenizer.token(65), tokenizer.bos_id) == (b"", None, 256)
    assert "".join(streamed(tokenizer, [66, 65, 67])) == "BC"
    assert tokenizer.decode([66, 65, 67]) == "BC"


def test_added_tokens_in_any_order_keep_their_ids(tmp_path: Path) -> None:
    data = byte_tokenizer()
    extra = {**data["added_tokens"][0], "content": "<x>", "id": 200, "special": False}
    del data["model"]["vocab"][next(text for text, id in data["model"]["vocab"].items() if id == 200)]
    data["added_tokens"] = [*reversed(data["added_tokens"]), extra]
    tokenizer = Tokenizer.load(byte_folder(tmp_path, tokenizer=data), 260)
    assert tokenizer.encode("<x><s>a<|im_end|>") == [200, 256, 97, 259]
    assert tokenizer.token_bytes(200) == b"<x>"


def test_padding_and_truncation_are_dropped(tmp_path: Path) -> None:
    padding = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    data = byte_tokenizer(padding={**padding, "pad_to_multiple_of": None}, truncation=truncation)
    assert Tokenizer.load(write_folder(tmp_path, tokenizer=data), 260).encode("abc") == [97, 98, 99]


def test_a_panic_of_the_library_is_an_error_without_noise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library's regex engine gives up on this one by panicking."""
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    level = {**byte_tokenizer()["pre_tokenizer"], "use_regex": False}
    data = byte_tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]})
    tokenizer = Tokenizer.load(write_folder(tmp_path, tokenizer=data), 260)
    with pytest.raises(TokenizerError, match="pre_tokenizer"):
        tokenizer.encode("a" * 16_000 + "!")
    assert capfd.readouterr().err == ""


def test_config_of_the_tokenizer(tmp_path: Path) -> None:
    folder = byte_folder(tmp_path, tokenizer_config={"bos_token": "\ud800", "eos_token": None})
    assert Tokenizer.load(folder, 260).bos_id is None
    folder = byte_folder(tmp_path, tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "<nope>"})
    with pytest.raises(
        TokenizerError,
        match=r"tokenizer_config\.json: eos_token: must be a token of the vocabulary \(got '<nope>'\)",
    ):
        Tokenizer.load(folder, 260)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: not valid JSON"):
        Tokenizer.load(folder, 260)


def test_paths_that_leave_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(byte_tokenizer()))
    folder = write_folder(tmp_path / "model")
    (folder / "tokenizer.json").symlink_to(outside)
    with pytest.raises(UnsafePathError, match=r"tokenizer\.json: leads out"):
        Tokenizer.load(folder, 260)


def test_links_into_the_hub_cache(tmp_path: Path) -> None:
    blob = tmp_path / "models--a--b" / "blobs" / "0123"
    blob.parent.mkdir(parents=True)
    blob.write_text(json.dumps(byte_tokenizer()))
    folder = write_folder(tmp_path / "models--a--b" / "snapshots" / "c0ffee")
    (folder / "tokenizer.json").symlink_to("../../blobs/0123")
    assert Tokenizer.load(folder, 260).encode("a") == [97]


def test_places_behind_the_text_are_its_end() -> None:
    """As the library gives them for some models with an end_of_word_suffix."""
    assert byte_spans("aé", [(0, 1), (1, 6), (6, 9)]) == [(0, 1), (1, 3), (3, 3)]
