"""Reference numbers of a published model, by transformers in f32 and by llama.cpp on the same GGUF file.

    .venv-differential/bin/python tests/differential/published.py MODEL.gguf --to FILE.json

The divergence of llama.cpp is measured with --llama-cpp, which needs llama-cpp-python (pip compiles it
for minutes). Without it the file keeps the divergence that it has.
"""

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 你好，世界! 👩‍👧 ½ 3.14159",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
)
GREEDY_TOKENS = 32
TOP = 64
# Law, prose and code; the file of reference numbers keeps the ids of the beginning of each.
KL_FILES = ("LICENSE", "README.md", "ropechat/engine/scoring.py")
KL_CHARACTERS = 2000


def by_transformers(gguf: Path) -> tuple[dict[str, Any], list[Any], list[list[int]]]:
    """The reference; per file of KL_FILES the log probabilities, float64 [tokens, vocab], and the ids."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # As in SmolLM2's tokenizer.json; of a GGUF file ("smollm") transformers takes GPT-2's.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.eval()
    found = []
    with torch.no_grad():
        for text in TEXTS:
            ids = tokenizer(text)["input_ids"]
            row = model(torch.tensor([ids])).logits[0, -1].double()
            top = torch.topk(row, TOP)
            greedy = model.generate(torch.tensor([ids]), max_new_tokens=GREEDY_TOKENS, do_sample=False)
            found.append(
                {
                    "text": text,
                    "ids": ids,
                    "logits": [[int(id), float(x)] for id, x in zip(top.indices, top.values, strict=True)],
                    "logsumexp": float(torch.logsumexp(row, 0)),
                    "greedy": greedy[0, len(ids) :].tolist(),
                }
            )
        texts = [(ROOT / name).read_text()[:KL_CHARACTERS] for name in KL_FILES]
        ids = [tokenizer(text)["input_ids"] for text in texts]
        rows = [torch.log_softmax(model(torch.tensor([one])).logits[0].double(), -1).numpy() for one in ids]
    return {"texts": found}, rows, ids


def kl_of_llama_cpp(
    gguf: Path, ids: list[list[int]], reference: list[Any], known: dict[str, list[int]]
) -> dict[str, Any]:
    """KL divergence of llama.cpp from the reference over all tokens, in nats. known: expected ids by text."""
    import llama_cpp
    import numpy as np

    model = llama_cpp.Llama(str(gguf), n_ctx=max(map(len, ids)) + 8, logits_all=True, verbose=False)
    for text in TEXTS:
        own = model.tokenize(text.encode(), add_bos=False, special=True)
        print("ids as llama.cpp's" if own == known[text] else f"other ids: {text!r}: {own} {known[text]}")
    found = []
    for one, exact in zip(ids, reference, strict=True):
        model.reset()
        model.eval(one)
        logits = np.array(model.scores[: len(one)], dtype=np.float64)
        most = logits.max(axis=1, keepdims=True)
        rows = logits - most - np.log(np.exp(logits - most).sum(axis=1, keepdims=True))
        found.append((np.exp(exact) * (exact - rows)).sum(axis=1))
    kl = np.concatenate(found)
    return {"mean": float(kl.mean()), "most": float(kl.max()), "version": llama_cpp.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--llama-cpp", action="store_true", help="measure llama.cpp's divergence, too")
    options = parser.parse_args()
    found, rows, ids = by_transformers(options.gguf)
    before = json.loads(options.to.read_text()) if options.to.is_file() else {}
    known = before.get("llama_cpp_kl")
    if options.llama_cpp:
        texts = {case["text"]: case["ids"] for case in found["texts"]}
        known = kl_of_llama_cpp(options.gguf, ids, rows, texts)
    found |= {"file": options.gguf.name, "kl_ids": ids, "llama_cpp_kl": known}
    found["kl_logprobs"] = [
        [round(float(exact[at, id]), 6) for at, id in enumerate(one[1:])]
        for one, exact in zip(ids, rows, strict=True)
    ]
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(json.dumps(found, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
