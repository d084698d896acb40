"""Two models on one text: the numbers beside NumPy's, windows, prompts, and what the outputs say."""

import csv
import dataclasses
import html.parser
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import CHATML, adds_bos, byte_tokenizer
from models import TINY, write_llama

from ropechat.conversation import Message, Role
from ropechat.engine.engine import Engine
from ropechat.errors import NonFiniteError, RequestError
from ropechat.inspector import compare_page, compare_records, compare_table
from ropechat.inspector.compare import compare, compare_tokens, mean_and_error, quantile, token_pairs
from ropechat.inspector.compare_spans import compare_spans
from ropechat.inspector.compare_text import pair_text, window_size
from ropechat.util.records import json_line
from ropechat.util.width import cell_width

TEXT = "A cat sat on the mat, and  then\nthe <|im_end|> dog – was it big? – came home.\n"


def folder(path: Path, seed: int, **changes: Any) -> Path:
    """A model with a token per byte, and a chat template."""
    write_llama(path, seed=seed, **{**TINY, "vocab_size": 260, **changes})
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHATML}
    tokenizer = byte_tokenizer(post_processor=adds_bos())
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(folder(tmp_path_factory.mktemp("a"), 1), dtype="f32", threads=2)


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(folder(tmp_path_factory.mktemp("b"), 2), dtype="f32", threads=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The weights of `a` in q8_0."""
    return Engine.load(folder(tmp_path_factory.mktemp("q"), 1), dtype="q8_0", threads=2)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Another tokenizer: pairs of letters are one token."""
    path = folder(tmp_path_factory.mktemp("o"), 3)
    tokenizer = byte_tokenizer(post_processor=adds_bos())
    for id, (left, right) in enumerate(("th", "ca", "at"), 260):
        tokenizer["model"]["vocab"][left + right] = id
        tokenizer["model"]["merges"].append([left, right])
    write_llama(path, seed=3, **{**TINY, "vocab_size": 263})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return Engine.load(path, dtype="f32", threads=2)


def log_probabilities(engine: Engine, ids: list[int]) -> np.ndarray:
    logits = engine.logits(ids).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def expected(a: Engine, b: Engine, ids: list[int]) -> dict[str, float]:
    P, Q = log_probabilities(a, ids)[:-1], log_probabilities(b, ids)[:-1]
    rows, following = np.arange(len(P)), ids[1:]
    kl = (np.exp(P) * (P - Q)).sum(1)
    M = np.log((np.exp(P) + np.exp(Q)) / 2)
    js = ((np.exp(P) * (P - M)).sum(1) + (np.exp(Q) * (Q - M)).sum(1)) / 2
    ratio = P[rows, following] - Q[rows, following]
    return {
        "tokens": len(P),
        "ppl_a": np.exp(-P[rows, following].mean()),
        "ppl_b": np.exp(-Q[rows, following].mean()),
        "ln_ppl_ratio": ratio.mean(),
        "ln_ppl_ratio_error": ratio.std() / np.sqrt(len(P) - 1),
        "mean_kld": kl.mean(),
        "mean_kld_error": kl.std() / np.sqrt(len(P) - 1),
        "median_kld": np.median(kl),
        "p99_kld": np.quantile(kl, 0.99),
        "max_kld": kl.max(),
        "mean_kld_back": (np.exp(Q) * (Q - P)).sum(1).mean(),
        "mean_js": js.mean(),
        "same_top": (P.argmax(1) == Q.argmax(1)).mean(),
    }


def test_the_summary_is_what_numpy_says(a: Engine, b: Engine, small: Engine) -> None:
    for engine in (b, small):
        found = dataclasses.asdict(compare(a, engine, TEXT).summary)
        for name, value in expected(a, engine, a.tokenizer.encode(TEXT)[:1] + list(TEXT.encode())).items():
            assert found[name] == pytest.approx(value, rel=1e-9), name


def test_a_model_beside_itself_differs_by_exactly_nothing(a: Engine, tmp_path: Path) -> None:
    twin = Engine.load(folder(tmp_path, 1), dtype="f32", threads=1)
    for engine in (a, twin):
        result = compare(a, engine, TEXT)
        found = result.summary
        assert (found.mean_kld, found.max_kld, found.mean_kld_back, found.mean_js) == (0.0, 0.0, 0.0, 0.0)
        assert (found.ln_ppl_ratio, found.same_top, found.ppl_a) == (0.0, 1.0, found.ppl_b)
        assert all(pair.a == pair.b for pair in result.worst)


def test_worst_places_come_first_and_say_what_score_says(a: Engine, b: Engine) -> None:
    pairing = pair_text(a, b, TEXT)
    pairs = list(token_pairs(pairing, top_k=4))
    result = compare(a, b, TEXT, worst=5, top_k=4)
    assert list(result.worst) == sorted(pairs, key=lambda pair: (-pair.kl, pair.number))[:5]
    assert compare(a, b, TEXT, worst=0).worst == ()
    for engine, side in ((a, "a"), (b, "b")):
        scored = [token for token in engine.score(TEXT, top_k=4, special="text") if token.role == "text"]
        assert len(scored) == len(pairs)
        for token, pair in zip(scored, pairs, strict=True):
            view = getattr(pair, side)
            assert (token.logprob, token.rank, token.entropy) == (view.logprob, view.rank, view.entropy)
            assert token.row is not None
            assert token.row.top == view.top
            assert (token.id, token.span) == (pair.id, pair.span)


@pytest.mark.parametrize("window", [2, 3, 16, 33, 50])
def test_windows_are_those_of_score(a: Engine, b: Engine, window: int) -> None:
    pairing = pair_text(a, b, TEXT)
    pairs = list(token_pairs(pairing, window=window_size(pairing, window)))
    indexes = [t.index for t in a.score(TEXT, special="text") if t.role == "text"]
    assert [pair.number for pair in pairs] == indexes  # one numbering, so that tables can be joined
    for engine, side in ((a, 0), (b, 1)):
        scored = [
            t for t in engine.score_stream(TEXT, top_k=1, special="text", window=window) if t.role == "text"
        ]
        views = [(pair.a, pair.b)[side] for pair in pairs]
        assert [token.logprob for token in scored] == [view.logprob for view in views]
        assert [token.context for token in scored] == [pair.context[side] for pair in pairs]


def test_ids_are_compared_as_they_are(a: Engine, b: Engine) -> None:
    ids = [5, 256, 77, 257, 8, 9]
    found = compare(a, b, ids).summary
    assert found.mean_kld == pytest.approx(expected(a, b, ids)["mean_kld"], rel=1e-9)
    assert found.tokens == 5


def test_only_the_text_behind_a_prompt_counts(a: Engine) -> None:
    before, after = "One two. ", "Three."
    result = compare(a, a, after, given=before, against_given="Nothing, ")
    assert result.summary.tokens == len(after)
    trace = a.score(before + after, special="text")
    pairs = list(token_pairs(result.pairing))
    assert [pair.a.logprob for pair in pairs] == [token.logprob for token in trace][-len(after) :]
    assert [pair.span for pair in pairs] == [(i, i + 1) for i in range(len(after))]
    assert result.summary.mean_kld > 0.0
    assert result.pairing.text == after.encode()
    with pytest.raises(RequestError, match="as the prompts differ"):
        compare(a, a, after, given=before, against_given="Nothing, ", window=8)
    assert compare(a, a, after * 3, given=before, window=8).summary.max_kld == 0.0


def test_a_reply_behind_messages(a: Engine) -> None:
    ask, system = Message(Role.USER, "Hello?"), Message(Role.SYSTEM, "Be brief.")
    result = compare(a, a, "Yes, hello.", given=[ask], against_given=[system, ask])
    assert result.pairing.text == b"Yes, hello."
    assert result.summary.tokens == 11
    ids = a.prompt_ids([ask]) + a.reply_ids([ask], "Yes, hello.")
    assert result.pairing.a.ids.tolist() == ids
    logprobs = [token.logprob for token in a.score(ids)][-11:]
    assert [pair.a.logprob for pair in token_pairs(result.pairing)] == logprobs


def test_errors(a: Engine, b: Engine, other: Engine, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="at least two tokens"):
        compare(a, b, "")
    with pytest.raises(RequestError, match="use compare_spans"):
        compare(a, other, TEXT)
    with pytest.raises(RequestError, match="must be a string after a prompt"):
        compare(a, b, [1, 2], given="x")
    for window in (1, 0, True):
        with pytest.raises(RequestError, match="window"):
            compare(a, b, TEXT, window=window)


def test_nan_is_an_error_that_names_the_side(a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(ids: list[int], *, first: int = 0) -> Any:
        broken = b.logits(ids)[first:]
        broken[2, 40] = np.nan
        yield broken

    monkeypatch.setattr(b, "logit_rows", rows)
    with pytest.raises(NonFiniteError, match=r"position 2: second model: the logit of id 40 .*got NaN"):
        compare(a, b, TEXT[:20])


def test_masked_ids_are_infinite_and_never_in_json(
    a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(ids: list[int], *, first: int = 0) -> Any:
        masked = b.logits(ids)[first:]
        masked[:, 32] = -np.inf  # the space
        yield masked

    monkeypatch.setattr(b, "logit_rows", rows)
    result = compare(a, b, "a b")
    found = result.summary
    assert (found.mean_kld, found.max_kld, found.ppl_b) == (math.inf, math.inf, math.inf)
    assert math.isfinite(found.mean_kld_back)
    assert math.isnan(found.mean_kld_error)
    assert 0.0 < found.mean_js < math.log(2)
    record = json.loads(json_line(compare_records.summary_record(found)))
    assert (record["mean_kld"], record["mean_kld_error"], record["ppl_b"]) == (None, None, None)
    token = json.loads(json_line(compare_records.token_record(result.pairing, result.worst[1])))
    assert token["kl"] is None
    assert "∞" in "\n".join(compare_table.render(result, 80))
    assert "∞" in "".join(compare_page.render(result, result.worst))


# ---- Different tokenizers


def test_spans_have_the_bits_of_both_models(a: Engine, other: Engine) -> None:
    text = "that cat\nthe mat\n"
    result = compare_spans(a, other, text)
    ours = [token for token in a.score(text, special="text") if token.role == "text"]
    theirs = [token for token in other.score(text, special="text") if token.role == "text"]
    assert len(theirs) < len(ours)
    ends = {token.span[1] for token in ours} & {token.span[1] for token in theirs}
    assert [pair.span[1] for pair in result.spans] == sorted(ends)
    assert "".join(text[slice(*pair.span)] for pair in result.spans) == text
    for pair in result.spans:
        for tokens, bits, count in (
            (ours, pair.bits[0], pair.tokens[0]),
            (theirs, pair.bits[1], pair.tokens[1]),
        ):
            inside = [t for t in tokens if pair.span[0] <= t.span[0] and t.span[1] <= pair.span[1]]
            assert len(inside) == count
            assert bits == pytest.approx(-sum(t.logprob or 0 for t in inside) / math.log(2), rel=1e-9)
    bits = [-sum(t.logprob or 0 for t in tokens) / math.log(2) for tokens in (ours, theirs)]
    assert result.summary.bits == pytest.approx(bits, rel=1e-12)
    assert result.summary.bits_per_byte == pytest.approx([value / len(text) for value in bits], rel=1e-12)
    assert result.summary.ppl_per_byte[0] == pytest.approx(2 ** (bits[0] / len(text)))
    assert [line.number for line in result.lines] == [1, 2]
    assert sum(line.bits[1] for line in result.lines) == pytest.approx(bits[1])
    assert [line.span for line in result.lines] == [(0, 9), (9, 17)]
    assert result.worst_spans[0].difference == max((p.difference for p in result.spans), key=abs)


def test_spans_of_one_tokenizer_are_its_tokens(a: Engine, b: Engine) -> None:
    by_token, by_span = compare(a, b, TEXT), compare_spans(a, b, TEXT)
    pairs = list(token_pairs(by_token.pairing))
    assert [pair.span for pair in by_span.spans] == [pair.span for pair in pairs]
    assert by_span.summary.ppl == pytest.approx((by_token.summary.ppl_a, by_token.summary.ppl_b), rel=1e-9)


# ---- Statistics


def test_statistics_are_numpys() -> None:
    rng = np.random.default_rng(4)
    for count in (2, 3, 10, 101):
        values = rng.exponential(size=count).tolist()
        mean, error = mean_and_error(values)
        assert mean == pytest.approx(np.mean(values))
        assert error == pytest.approx(np.std(values, ddof=1) / np.sqrt(count))
        for share in (0.0, 0.5, 0.99, 1.0):
            assert quantile(sorted(values), share) == pytest.approx(np.quantile(values, share))
    assert math.isnan(mean_and_error([1.0])[1])
    assert mean_and_error([1.0, math.inf])[0] == math.inf
    assert quantile([0.0, math.inf], 0.0) == 0.0


# ---- Outputs


def test_the_table_fits_every_width(a: Engine, b: Engine, other: Engine) -> None:
    hostile = "日本語 \x1b[31m‮ é\n" + TEXT
    for result in (compare(a, b, hostile, worst=30), compare_spans(a, other, hostile)):
        for width in (60, 80, 81, 160):
            lines = list(compare_table.render(result, width))
            assert max(map(cell_width, lines)) <= width
            assert not any("\x1b" in line or "‮" in line for line in lines)


def test_large_values_of_two_sides_stay_apart(a: Engine, other: Engine) -> None:
    result = compare_spans(a, other, TEXT)
    bits = 40.0 * result.summary.bytes, 41.0 * result.summary.bytes
    huge = dataclasses.replace(result, summary=result.summary._replace(bits=bits))
    line = next(line for line in compare_table.render(huge, 80) if line.startswith("PPL per byte"))
    assert line.split()[-2:] == ["1,099,511,627,776.0000", "2,199,023,255,552.0000"]


def test_records_hold_what_the_comparison_says(a: Engine, b: Engine) -> None:
    pairing = pair_text(a, b, TEXT)
    pairs: list[Any] = []
    result = compare_tokens(pairing, on_token=pairs.append)
    meta = compare_records.meta_record(pairing, None)
    assert meta["schema"] == "ropechat.compare/1"
    assert (meta["by"], meta["text"], meta["a"]["dtype"], meta["window"]) == ("token", TEXT, "f32", None)
    text = b"".join(TEXT.encode()[slice(*pair.span)] for pair in pairs)
    assert text == TEXT.encode()
    for pair in pairs:
        record = json.loads(json_line(compare_records.token_record(pairing, pair)))
        assert (record["kl"], record["b"]["rank"]) == (pair.kl, pair.b.rank)
        assert record["a"]["top"] == [list(entry) for entry in pair.a.top]
        assert len(record["a"]["top_text"]) == len(pair.a.top) == 5
    lines = compare_records.Lines(pairing, "csv", None)
    out = lines.head + "".join(map(lines.token, pairs))
    assert out.count("\n") == 1 + len(pairs)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [float(row["kl"]) for row in rows] == [pair.kl for pair in pairs]
    assert [int(row["rank_b"]) for row in rows] == [pair.b.rank for pair in pairs]
    assert compare_records.summary_record(result.summary)["mean_kld"] == result.summary.mean_kld


class _Reader(html.parser.HTMLParser):
    """Elements, attributes, and the content of scripts by id."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self.text = ""
        self._in: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag: str) -> None:
        while self._in and self._in.pop() != tag and tag != "script":
            pass

    def handle_data(self, data: str) -> None:
        if self._in and self._in[-1] in ("rows", "words", "worst", "scale"):
            self.data[self._in[-1]] = data
        if "pre" in self._in:
            self.text += data


HOSTILE = "</pre><script>alert(1)</script> <img src=x onerror=y> \"'&amp; --> ]]> \x1b[31m ‮"


def test_the_page_holds_the_numbers_and_no_foreign_element(a: Engine, b: Engine) -> None:
    pairing = pair_text(a, b, HOSTILE + TEXT)
    pairs: list[Any] = []
    result = compare_tokens(pairing, on_token=pairs.append)
    page = "".join(compare_page.render(result, pairs))
    assert "alert(1)</script>" not in page
    read = _Reader()
    read.feed(page)
    assert not {tag for tag, _ in read.tags} & {"img", "iframe", "object", "link", "form", "svg"}
    assert [tag for tag, _ in read.tags].count("script") == 5
    assert not any(name.startswith("on") or name in ("style", "src") for _, had in read.tags for name in had)
    assert all((had["href"] or "").startswith("#p") for tag, had in read.tags if tag == "a")
    rows = json.loads(read.data["rows"])
    assert [row[0] for row in rows] == [pair.id for pair in pairs]
    assert [row[1] for row in rows] == pytest.approx([pair.kl / math.log(2) for pair in pairs], abs=1e-5)
    assert [row[4][1] for row in rows] == [pair.b.rank for pair in pairs]
    ids = {had.get("id") for _, had in read.tags}
    assert {id for id in ids if re.fullmatch(r"p\d+", id or "")} == {f"p{one.number}" for one in result.worst}
    words = json.loads(read.data["words"])
    assert all(str(row[3][2][0]) in words for row in rows)
    assert len(read.data["rows"]) < 200 * len(rows)  # a page of 10,000 tokens has less than 3 MB
    assert [rows[at][:2] for at in json.loads(read.data["worst"])] == [
        [pair.id, pytest.approx(pair.kl / math.log(2), abs=1e-5)] for pair in result.worst
    ]


def test_the_page_of_spans(a: Engine, other: Engine) -> None:
    read = _Reader()
    read.feed("".join(compare_page.render(compare_spans(a, other, HOSTILE + TEXT))))
    assert "alert(1)" in read.text
    assert not any(name.startswith("on") or name in ("style", "src") for _, had in read.tags for name in had)
