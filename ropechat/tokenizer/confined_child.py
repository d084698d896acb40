"""The child of `confined`: the tokenizers library, within limits that the kernel enforces."""

import json
from array import array
from base64 import b64encode
from typing import Any

import tokenizers

from ropechat.tokenizer.limits import LOAD_SECONDS, MAX_MEMORY_BYTES, cpu_seconds
from ropechat.util.limited_child import answer_requests, begin, cpu_limit, lock_down


class Worker:
    """Builds the tokenizer of the first request, then encodes and decodes."""

    def __init__(self) -> None:
        self._inner: tokenizers.Tokenizer | None = None

    def reply(self, body: bytes) -> bytes:
        """JSON of the result, or of {"error", "kind"} with the kind "failed" or "limit"."""
        try:
            if self._inner is None:
                with cpu_limit(LOAD_SECONDS):
                    self._inner = tokenizers.Tokenizer.from_buffer(body)
                    self._inner.no_padding()
                    self._inner.no_truncation()
                return b"{}"
            with cpu_limit(cpu_seconds(len(body))):
                return json.dumps(_result(self._inner, json.loads(body))).encode()
        except MemoryError:
            what = f"must take at most {MAX_MEMORY_BYTES >> 20} MB of memory"
            return json.dumps({"error": what, "kind": "limit"}).encode()
        except BaseException as error:  # PyO3's PanicException is no Exception
            what = (str(error).splitlines() or [type(error).__name__])[0][:200]
            return json.dumps({"error": what, "kind": "failed"}).encode()


def _result(inner: tokenizers.Tokenizer, request: dict[str, Any]) -> dict[str, Any]:
    if "decode" in request:
        return {"text": inner.decode(request["decode"], skip_special_tokens=False)}
    encoding = inner.encode(request["encode"], add_special_tokens=request["add_special_tokens"])
    flat = [place for span in encoding.offsets for place in span]
    lists = {"ids": encoding.ids, "offsets": flat, "special_tokens_mask": encoding.special_tokens_mask}
    return {name: b64encode(array("I", values).tobytes()).decode() for name, values in lists.items()}


def serve() -> None:
    """Answer requests until the input ends."""
    begin()
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).encode("a")  # late imports, before lock_down
    lock_down(MAX_MEMORY_BYTES)
    answer_requests(Worker().reply)
