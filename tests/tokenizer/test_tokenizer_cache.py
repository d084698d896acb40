"""Checked tokenizer files that are kept: the same tokens, and nothing that was not checked."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_vocabularies import KEY, bytes_vocabulary, spm_vocabulary
from model_folders import GOLDEN, byte_folder, byte_tokenizer, golden_folder

from ropechat.errors import TokenizerError
from ropechat.tokenizer import Tokenizer
from ropechat.tokenizer import cache as tokenizer_cache
from ropechat.tokenizer.confined import ConfinedTokenizer

TEXTS = [
    "",
    "Once upon a time",
    "  two  spaces\n\ttab",
    "naïve café 漢字 🙂",
    "<s>a</s><|im_start|>x",
    "\0\x1b[0m",
]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, checking a file fails the test."""

    def forbid() -> None:
        monkeypatch.setattr("ropechat.tokenizer.validate.FileCheck", None)

    return forbid


def everything(tokenizer: Tokenizer) -> list[object]:
    ids = [tokenizer.encode(text) for text in TEXTS]
    said: list[object] = [ids, [tokenizer.decode(some) for some in ids]]
    said += [tokenizer.special_ids, tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size]
    for id in {id for some in ids for id in some} | set(range(tokenizer.vocab_size + 3)):
        said.append((tokenizer.token(id), tokenizer.token_bytes(id)))
    said += [tokenizer.encode_aligned(text) for text in TEXTS]
    for some in ids:
        stream = tokenizer.stream()
        said.append([stream.push(id) for id in some] + [stream.flush()])
    return said


def uncached(model: Path) -> Tokenizer:
    """With the whole vocabulary in the library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPECHAT_CACHE", "off")
        return Tokenizer.load(model, 1 << 20)


def test_a_first_start_lets_the_library_go(tmp_path: Path, folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_folder(tmp_path / "model"), 1 << 20)
    assert tokenizer.decode(tokenizer.encode("Once upon")) == "Once upon"
    assert tokenizer._vocabulary is not None
    assert tokenizer._vocabulary._library is None


@pytest.mark.parametrize("kind", ["bytes", "bl", "sp"])
def test_a_kept_file_means_the_same(
    kind: str, tmp_path: Path, folder: Path, unchecked: Callable[[], None]
) -> None:
    model = tmp_path / "model"
    if kind == "bytes":
        byte_folder(model)
    else:
        model.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(GOLDEN / "detok" / kind / name, model / name)
    expected = everything(uncached(model))
    assert everything(Tokenizer.load(model, 1 << 20)) == expected
    assert len(list(folder.iterdir())) == 1
    unchecked()
    assert everything(Tokenizer.load(model, 1 << 20)) == expected


@pytest.mark.parametrize(
    "keys",
    [bytes_vocabulary(eot_token_id=259, chat_template="{{ messages }}"), spm_vocabulary()],
    ids=["gpt2", "llama"],
)
def test_a_kept_gguf_vocabulary_means_the_same(keys: dict[str, Any], tmp_path: Path, folder: Path) -> None:
    file, size = tmp_path / "model.gguf", len(keys[KEY + "tokens"])
    file.write_bytes(b"GGUF")

    def whole(tokenizer: Tokenizer) -> list[object]:
        return [*everything(tokenizer), tokenizer.config, tokenizer.end_ids, tokenizer.control_ids]

    expected = whole(Tokenizer.from_gguf(tmp_path / "not kept.gguf", lambda: keys, size))
    assert whole(Tokenizer.from_gguf(file, lambda: keys, size)) == expected
    assert len(list(folder.iterdir())) == 1
    assert whole(Tokenizer.from_gguf(file, pytest.fail, size)) == expected
    damage = next(folder.iterdir())
    damage.write_bytes(damage.read_bytes().replace(b'"merges"', b'"merged"'))
    kept = Tokenizer.from_gguf(file, lambda: keys, size)
    assert kept._vocabulary is not None
    assert kept._vocabulary.library().get_vocab_size() == size, "read again from its own file"
    file.write_bytes(b"GGUF2")
    changed = bytes_vocabulary(tokens=[*bytes_vocabulary()[KEY + "tokens"][:-1], "new"])
    assert Tokenizer.from_gguf(file, lambda: changed, 262).id_of("new") == 261


def test_a_confined_one_is_kept_as_such(tmp_path: Path, folder: Path, unchecked: Callable[[], None]) -> None:
    split = {"type": "Split", "pattern": {"Regex": "z+y"}, "behavior": "Isolated", "invert": False}
    level = {**byte_tokenizer()["pre_tokenizer"], "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [split, level]}
    model = byte_folder(tmp_path / "model", tokenizer=byte_tokenizer(pre_tokenizer=steps))
    expected = everything(Tokenizer.load(model, 260))
    unchecked()
    tokenizer = Tokenizer.load(model, 260)
    assert tokenizer._vocabulary is not None
    assert isinstance(tokenizer._vocabulary.library(), ConfinedTokenizer)
    assert everything(tokenizer) == expected


def test_what_a_prepared_text_takes_is_at_hand(tmp_path: Path, folder: Path) -> None:
    model = golden_folder(tmp_path / "model", "bl", 1 << 20)
    expected = Tokenizer.load(model, 1 << 20).encode("Once upon a time")
    tokenizer = Tokenizer.load(model, 1 << 20)
    tokenizer.prepare("Once upon a time")
    tokenizer.prepare("\ud800")
    next(folder.iterdir()).unlink()
    assert tokenizer.encode("Once upon a time") == expected
    assert tokenizer._vocabulary is not None
    assert tokenizer._vocabulary._library is None, "what was kept is gone, and nothing of it was needed"


def test_merges_become_texts_where_that_is_clear(
    tmp_path: Path, folder: Path, unchecked: Callable[[], None]
) -> None:
    for name, pairs in (("plain", [["a", "b"], ["ab", "c"]]), ("spaced", [["a", " "], ["a ", "b"]])):
        file = byte_tokenizer()
        vocab = file["model"]["vocab"]
        vocab |= {token: 1000 + i for i, token in enumerate({"".join(p) for p in pairs} | {" "} - set(vocab))}
        file["model"]["merges"] = pairs
        model = byte_folder(tmp_path / name, tokenizer=file)
        expected = everything(uncached(model))
        Tokenizer.load(model, 1 << 20)
        kept = tokenizer_cache.load_cached(model / "tokenizer.json", 1 << 20)
        assert kept is not None
        merges = json.loads(kept.content() or b"")["model"]["merges"]
        assert merges == (["a b", "ab c"] if name == "plain" else pairs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ropechat.tokenizer.validate.FileCheck", None)
            assert everything(Tokenizer.load(model, 1 << 20)) == expected


def test_another_file_or_vocabulary_is_checked_again(tmp_path: Path, folder: Path) -> None:
    model = byte_folder(tmp_path / "model")
    Tokenizer.load(model, 260)
    with pytest.raises(TokenizerError, match="must be from 0 to 99"):
        Tokenizer.load(model, 100)
    file = model / "tokenizer.json"
    bad = byte_tokenizer()
    bad["model"]["vocab"]["a"] = 10**6
    status = file.stat()
    text = json.dumps(bad, separators=(",", ":"))
    file.write_text(text + " " * (status.st_size - len(text)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    with pytest.raises(TokenizerError, match="1000000"):
        Tokenizer.load(model, 260)


def test_damage_and_others_files_are_ignored(tmp_path: Path, folder: Path) -> None:
    model = byte_folder(tmp_path / "model")
    expected = everything(Tokenizer.load(model, 260))
    kept = next(folder.iterdir())
    whole = kept.read_bytes()
    header = whole.index(b"\n")
    damages = [
        whole[:-1],
        whole[: len(whole) // 2],
        b"",
        b"{}\n{}",
        b"[1]\n",
        b"00000000 []\n",
        whole[:header].replace(b'"size": 260', b'"size": 261') + whole[header:],
    ]
    for damage in damages:
        assert damage != whole
        kept.write_bytes(damage)
        assert tokenizer_cache.load_cached(model / "tokenizer.json", 260) is None
        assert everything(Tokenizer.load(model, 260)) == expected
        assert kept.read_bytes() == whole, "kept again"
    kept.chmod(0o620)
    assert tokenizer_cache.load_cached(model / "tokenizer.json", 260) is None
    kept.chmod(0o600)
    assert tokenizer_cache.load_cached(model / "tokenizer.json", 260) is not None


@pytest.mark.slow
def test_damage_that_is_found_late(tmp_path: Path, folder: Path) -> None:
    """A kept file is read in parts: whichever is damaged, the tokenizer says the same."""
    model = byte_folder(tmp_path / "model")
    expected = everything(Tokenizer.load(model, 260))
    kept = next(folder.iterdir())
    whole = kept.read_bytes()
    header = whole.index(b"\n") + 1
    for place in range(header, len(whole), max(1, (len(whole) - header) // 60)):
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        tokenizer = Tokenizer.load(model, 260)
        assert everything(tokenizer) == expected, place
        tokenizer.encode("long " * 5000)  # which takes the whole vocabulary
        assert everything(tokenizer) == expected, place
    kept.write_bytes(whole)
    tokenizer = Tokenizer.load(model, 260)
    kept.unlink()
    assert everything(tokenizer) == expected
    assert kept.read_bytes() == whole, "kept again"


def test_a_file_that_changed_meanwhile_is_not_mixed_in(tmp_path: Path, folder: Path) -> None:
    model = byte_folder(tmp_path / "model")
    Tokenizer.load(model, 260)
    tokenizer = Tokenizer.load(model, 260)
    for path in folder.iterdir():
        path.unlink()
    with (model / "tokenizer.json").open("a") as file:
        file.write(" ")
    with pytest.raises(TokenizerError, match="changed after the model was loaded; load the model again"):
        tokenizer.encode("long " * 5000)


def test_off_and_small_files_keep_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = byte_folder(tmp_path / "model")
    monkeypatch.setenv("ROPECHAT_CACHE", "off")
    Tokenizer.load(model, 260)
    monkeypatch.setenv("ROPECHAT_CACHE", "auto")
    monkeypatch.setattr(tokenizer_cache, "_MIN_FILE_BYTES", 1 << 20)
    Tokenizer.load(model, 260)
    assert not folder.exists()


def test_a_lone_surrogate_is_not_kept() -> None:
    assert tokenizer_cache.pack(byte_tokenizer() | {"note": "\ud800"}, None) is None


def test_no_more_than_so_many_files(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_cache, "_MAX_FILES", 3)
    models = [byte_folder(tmp_path / f"model{number}") for number in range(4)]
    for number, model in enumerate(models):
        Tokenizer.load(model, 260)
        for age, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)):
            os.utime(path, (1000 + age, 1000 + age))
        if number == 2:
            Tokenizer.load(models[0], 260)  # used again
    kept = [tokenizer_cache.load_cached(model / "tokenizer.json", 260) is not None for model in models]
    assert kept == [True, False, True, True]
