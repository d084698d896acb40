"""What -m takes: folders, GGUF files, Hub ids and `builtin`; what is tried, and what is never tried."""

import os
from pathlib import Path

import pytest

from ropechat.engine.loading import display_name
from ropechat.errors import ModelNotFoundError, ModelPathError, NotDownloadedError, UnsafePathError
from ropechat.models import resolve as model_source
from ropechat.models.hub.names import HubName, parse
from ropechat.models.resolve import hub_name, resolve
from ropechat.models.weights import choose_files, choose_gguf, gguf_sets, is_plain, quant_of, shard_names
from ropechat.util.files import read_json

COMMIT = "0123456789" * 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, and an empty folder to be in."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "hf" / "hub"


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def snapshot(cache: Path, *names: str, repo: str = "org/name", revision: str = "main") -> Path:
    """A repository in the cache as huggingface_hub lays it out, without blobs."""
    folder = cache / ("models--" + repo.replace("/", "--"))
    put(folder, f"refs/{revision}")
    (folder / "refs" / revision).write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True, exist_ok=True)
    return put(folder / "snapshots" / COMMIT, *names)


# ---- Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("org/name:Q8_0", HubName("org/name", quant="Q8_0")),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:q4_k_m@dev", HubName("org/name", "dev", "q4_k_m")),
        ("org/name@dev:q4_k_m", HubName("org/name", "dev", "q4_k_m")),
        ("https://huggingface.co/Org/Na.me-1_x", HubName("Org/Na.me-1_x")),
        ("hf.co/org/name:F16", HubName("org/name", quant="F16")),
    ],
)
def test_hub_names(text: str, name: HubName) -> None:
    assert parse(text) == name
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["", "name", "a/b/c", "/org/name", "org/", "../name", "org/..", "org/na--me", "org/name.git", "org/name:",
     "org/name@", "org/name:a:b", "org/name@../../x", "org/name@a/../b", "org/name@/x", "org/na me", "org/ñ",
     "org/" + "x" * 100, "-org/name", "org/name\n", "org/name:\x1b[2J"],
)  # fmt: skip
def test_what_is_no_hub_name(text: str) -> None:
    assert parse(text) is None


def test_paths_are_never_looked_up_on_the_hub() -> None:
    for text in ("./org/name", "../name", "/org/name", "~/name", "org/name/", "org/model.safetensors"):
        assert hub_name(text) is None
    assert hub_name(Path("org/name")) is None
    with pytest.raises(ModelPathError, match=r"model not found \(tried .*/org/name\); give a folder"):
        resolve("./org/name")


# ---- Which files


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q8_0.gguf", "Q8_0"),
        ("gemma-3-1b-it-qat-q4_0.gguf", "Q4_0"),
        ("UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("Q6_K/weights.gguf", "Q6_K"),
        ("m.FP16.gguf", "F16"),
        ("m-bf16.gguf", "BF16"),
        ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("Qwen3-0.6B.gguf", None),
        ("stories260K.gguf", None),
    ],
)
def test_quantization_of_a_name(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


def test_choosing_a_gguf() -> None:
    names = [
        "m-Q2_K.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "m-UD-Q6_K_XL.gguf",
        "mmproj-F16.gguf",
        "x.imatrix.gguf",
    ]
    names += [f"big/m-BF16-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    sets = gguf_sets(names)
    assert len(sets) == 5
    assert choose_gguf(sets, None, "r").name == "m-Q4_K_M.gguf"
    assert choose_gguf(sets, "q8_0", "r").name == "m-Q8_0.gguf"
    assert choose_gguf(sets, "q6_k_xl", "r").name == "m-UD-Q6_K_XL.gguf"
    assert choose_gguf(sets, "m-Q2_K.gguf", "r").name == "m-Q2_K.gguf"
    assert choose_gguf(sets, "bf16", "r").files == tuple(names[-3:])
    with pytest.raises(
        ModelNotFoundError, match=r"no GGUF file matches F16; available: BF16, Q2_K, Q4_K_M, Q8_0, UD-Q6_K_XL"
    ):
        choose_gguf(sets, "F16", "r")
    two = gguf_sets(["a-Q4_0.gguf", "b-Q4_0.gguf"])
    with pytest.raises(ModelNotFoundError, match=r"2 GGUF files match Q4_0: a-Q4_0.gguf, b-Q4_0.gguf"):
        choose_gguf(two, "q4_0", "r")
    assert choose_gguf(two, None, "r").name == "a-Q4_0.gguf"


def test_what_is_fetched() -> None:
    wanted = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    wanted += ["chat_template.jinja", "additional_chat_templates/rag.jinja", "model.safetensors"]
    others = ["README.md", ".gitattributes", "vocab.bin", "m-Q8_0.gguf", "pytorch_model.bin", "evil.py"]
    others += [
        "consolidated.safetensors",
        "onnx/model.onnx",
        "original/model.safetensors",
        "training_args.bin",
    ]
    there = [*others, *wanted]
    chosen = choose_files(there, None, dict, "r")
    assert chosen.weights == ("model.safetensors",)
    assert sorted(chosen.files) == sorted(wanted)
    assert choose_files(there, "Q8_0", dict, "r").files == ("m-Q8_0.gguf",)
    with pytest.raises(ModelNotFoundError, match="a pickle can run code"):
        choose_files(["config.json", "pytorch_model.bin"], None, dict, "r")


def test_shards_are_those_of_the_index() -> None:
    index = {
        "weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    }
    there = ["config.json", "model.safetensors.index.json", "model-1.safetensors", "other.safetensors"]
    chosen = choose_files(there, None, lambda: index, "r")
    assert chosen.weights == ("model-1.safetensors", "model-2.safetensors")
    for bad in (
        "../x.safetensors",
        "a/b.safetensors",
        "/etc/passwd",
        "pytorch_model.bin",
        "a\\b.safetensors",
        "",
    ):
        with pytest.raises(Exception, match="weight_map"):
            shard_names({"weight_map": {"a": bad}}, "r")


def test_plain_names() -> None:
    assert all(map(is_plain, ("a", "a/b.gguf", "a-00001-of-00002.gguf")))
    assert not any(map(is_plain, ("", "/a", "a/", "..", "a/../b", "a\\b", "C:a", "a\0b", "a\nb", "x" * 256)))


# ---- Local models


def test_folders_and_files(tmp_path: Path) -> None:
    model = put(tmp_path / "model", "config.json", "model.safetensors", "m-Q8_0.gguf")
    assert resolve(model) == model
    one = put(tmp_path / "one", "m-Q8_0.gguf", "config.json")
    assert resolve(str(one)) == one / "m-Q8_0.gguf"
    split = put(tmp_path / "split", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert resolve(split) == resolve(split / "m-00001-of-00002.gguf") == split / "m-00001-of-00002.gguf"
    stored = tmp_path / "sha256-0"  # as other programs keep it
    stored.write_bytes(b"GGUF\3\0\0\0")
    assert resolve(stored) == stored
    empty = tmp_path / "empty"
    empty.mkdir()
    assert resolve(empty) == empty  # the engine says what it lacks


@pytest.mark.parametrize(
    ("names", "model", "words"),
    [
        (
            ["a-Q4_0.gguf", "a-Q8_0.gguf"],
            ".",
            r"one GGUF model \(got 2: a-Q4_0.gguf, a-Q8_0.gguf\); give one",
        ),
        (
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
            "m-00002-of-00002.gguf",
            "must be the first part",
        ),
        (["m-00001-of-00002.gguf"], "m-00001-of-00002.gguf", "missing parts m-00002-of-00002.gguf"),
        (["m.bin"], "m.bin", "must be a .gguf file"),
        ([], "nothing", "model not found"),
        ([], "", "must be a folder, a .gguf file"),
        ([], "a\0b", "must be a folder"),
    ],
)
def test_local_refusals(names: list[str], model: str, words: str) -> None:
    put(Path("."), *names)
    with pytest.raises(ModelPathError, match=words.replace("[", r"\[")):
        resolve(model)


def test_a_local_path_wins(cache: Path) -> None:
    found = snapshot(cache, "config.json", "model.safetensors", "tokenizer.json")
    assert resolve("org/name") == found
    put(Path("org/name"), "config.json", "model.safetensors", "m-Q4_0.gguf", "m-Q8_0.gguf")
    assert resolve("org/name") == Path("org/name")
    assert resolve("org/name:q8_0") == Path("org/name/m-Q8_0.gguf")


def test_builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "builtin_folder", lambda: tmp_path / "builtin")
    with pytest.raises(ModelNotFoundError, match="builtin: this build has no built-in model"):
        resolve("builtin")
    put(tmp_path / "builtin", "config.json")
    assert resolve("builtin") == tmp_path / "builtin"


# ---- The cache


def test_cached_models(cache: Path) -> None:
    found = snapshot(
        cache, "config.json", "model.safetensors", "tokenizer.json", "m-Q8_0.gguf", "x/m-Q4_0.gguf"
    )
    assert resolve("org/name") == resolve("org/name@main") == resolve(f"org/name@{COMMIT}") == found
    assert resolve("org/name:Q4_0") == found / "x/m-Q4_0.gguf"
    assert resolve("https://huggingface.co/org/name") == found
    assert display_name(found) == "org/name"
    assert display_name(found / "x/m-Q4_0.gguf") == "org/name:Q4_0"
    snapshot(cache, "m-Q5_0.gguf", repo="org/ggufs", revision="refs/pr/1")
    assert resolve("org/ggufs@refs/pr/1").name == "m-Q5_0.gguf"


@pytest.mark.parametrize(
    ("names", "model", "words"),
    [
        (
            [],
            "other/name",
            r"not in the Hub cache .*tried .*/other/name too\); run `ropechat models pull",
        ),
        ([], "org/name@v2", r"not in the Hub cache .*`ropechat models pull org/name@v2`"),
        (["m-Q8_0.gguf"], "org/name:Q4_0", r"no GGUF file matches Q4_0; available: Q8_0 in the Hub cache"),
        (["model.safetensors", "tokenizer.json"], "org/name", r"incomplete .*missing config.json"),
        (["config.json", "model.safetensors"], "org/name", r"incomplete .*missing tokenizer.json"),
        (["config.json", "tokenizer.json"], "org/name", r"weights: must be"),
        (["m-00001-of-00002.gguf"], "org/name", r"incomplete .*missing m-00002-of-00002.gguf"),
    ],
)
def test_what_is_not_whole_in_the_cache(names: list[str], model: str, words: str, cache: Path) -> None:
    snapshot(cache, *names)
    with pytest.raises(NotDownloadedError, match=words) as caught:
        resolve(model)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_a_missing_shard_or_blob_is_missed(cache: Path) -> None:
    found = snapshot(cache, "config.json", "tokenizer.json", "a.safetensors", "b.safetensors")
    index = '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}'
    (found / "model.safetensors.index.json").write_text(index)
    assert resolve("org/name") == found
    (found / "b.safetensors").unlink()
    (found / "b.safetensors").symlink_to("../../blobs/gone")
    with pytest.raises(NotDownloadedError, match=r"in the Hub cache \(missing b"):
        resolve("org/name")


def test_bytes_that_repositories_share(cache: Path) -> None:
    """huggingface_hub 2.4 links blobs of a repository to <cache>/blobs/<2 digits>/<hash>, beside a mark."""
    found = snapshot(cache, "model.safetensors", "tokenizer.json")
    put(cache, "blobs/f0/f00", "models--org--name/blobs/other")
    (cache / "models--org--name/blobs/e00").symlink_to("../../blobs/f0/f00")
    (found / "config.json").symlink_to("../../blobs/e00")
    with pytest.raises(UnsafePathError, match="leads out of"):
        read_json(found, "config.json")
    put(cache, "blobs/.huggingface-shared-blobs")
    assert read_json(found, "config.json") == {}
    assert resolve("org/name") == found


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropechat.models.hub.cache import cache_folder

    assert cache_folder() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    assert cache_folder() == tmp_path / "other"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME")
    assert cache_folder() == Path(os.path.expanduser("~/.cache/huggingface/hub"))


@pytest.mark.parametrize("given", ["./\udcff\udcfe", Path("\udcff")])
def test_a_name_that_is_no_unicode_is_refused(given: str | Path) -> None:
    with pytest.raises(ModelPathError, match="must be UTF-8; rename"):
        resolve(given)
