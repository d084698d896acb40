"""The header of a journal: everything that a result depends on but the rows."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropechat.batch.forms import result_columns
from ropechat.batch.journal import SCHEMA
from ropechat.batch.row_template import canonical
from ropechat.batch.spec import BatchSpec
from ropechat.engine.native import load_core
from ropechat.errors import FileAccessError

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine

_SAMPLED_BYTES = 4096
_SAMPLED_PLACES = 64
_MODEL_SUFFIXES = (".safetensors", ".gguf", ".json", ".jinja", ".model")


def settings_header(run_seed: int, spec: BatchSpec) -> dict[str, Any]:
    """The fields that do not depend on the model."""
    settings, rows = spec.prompts, spec.rows
    drawn = dataclasses.asdict(spec.sampling)
    del drawn["seed"]
    grammar = drawn.pop("grammar")
    template = None if rows.template is None else _sha(canonical(rows.template.sources).encode())
    return {
        "schema": SCHEMA,
        "run_seed": run_seed,
        "sampling": drawn,
        "system": settings.system,
        "raw": settings.raw,
        "n": settings.samples,
        "logprobs": settings.logprobs,
        "agree": settings.agree,
        "stop": list(settings.stop) or None,
        "truncate_prompt": settings.truncate,
        "fail_below": spec.fail_below,
        **({} if grammar is None else {"grammar": _sha(canonical(grammar).encode())}),
        "columns": result_columns(spec.sampling.grammar, agree=settings.agree),
        **({"json_flexible": True} if rows.flexible else {}),
        "prompt_template": template,
        "prompt_field": rows.prompt_field,
        "id_field": rows.id_field,
        "score": rows.score,
        "choices": list(rows.choices) or None,
        "dedupe": rows.dedupe,
        "keep": rows.keep if isinstance(rows.keep, str) else list(rows.keep),
        **({} if rows.shard is None else {"shard": [rows.shard.number, rows.shard.count]}),
    }


def model_header(model: Path) -> dict[str, Any]:
    """The model's files: [name, size, hash of samples of the content]. Raises FileAccessError."""
    if model.is_dir():
        files = sorted(path for path in model.iterdir() if path.suffix in _MODEL_SUFFIXES and path.is_file())
    else:
        files = [model]
    try:
        return {"files": [[path.name, path.stat().st_size, _sampled_sha(path)] for path in files]}
    except OSError as error:
        raise FileAccessError(f"{error.filename or model}: {error.strerror}") from None


def engine_header(engine: "Engine", variables: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are known when the model is loaded. variables: those of the chat template."""
    template = engine.prompts.template
    facts = engine.facts
    return {
        "engine": load_core().__version__,
        **{name: facts[name] for name in ("dtype", "kv_dtype", "isa", "context")},
        "template": None if template is None else _sha(template.source.encode("utf-8", "surrogatepass")),
        "template_vars": dict(variables),
    }


def _sampled_sha(path: Path) -> str:
    """A hash of blocks at fixed shares of a file, its start and end among them: fast for any size."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb", buffering=0) as file:
        for place in range(_SAMPLED_PLACES):
            file.seek(max(0, size - _SAMPLED_BYTES) * place // (_SAMPLED_PLACES - 1))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
