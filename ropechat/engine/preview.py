"""What is known of a model without its weights: how long prompts are, and how fast it was here."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropechat.engine.loading import (
    display_name,
    find_stop_ids,
    load_chat_template,
    load_tokenizer,
    read_header,
)
from ropechat.engine.native import gguf_metadata
from ropechat.engine.prompt import PromptBuilder
from ropechat.engine.spec import ModelSpec
from ropechat.engine.validation import split_prompt
from ropechat.errors import RopechatError
from ropechat.models.recommended import own_sampling
from ropechat.models.resolve import resolve
from ropechat.models.speed import Speed, load_speed
from ropechat.sampling import AUTO

if TYPE_CHECKING:
    from pathlib import Path

    from ropechat.engine.scheduler import Job

_BLOCK = 32


class ModelPreview:
    """A model on this machine whose weights are not read. Raises as `ModelSpec.load`."""

    def __init__(self, spec: ModelSpec) -> None:
        self._folder: Path = resolve(spec.name)
        self._facts = read_header(self._folder)
        tokenizer = load_tokenizer(self._folder, self._facts["vocab_size"], gguf_metadata)
        template = load_chat_template(self._folder, tokenizer) if tokenizer.present else None
        stop_ids = find_stop_ids(self._folder, self._facts, tokenizer, template)
        self.name = display_name(self._folder)
        self.prompts = PromptBuilder(tokenizer, template, tokenizer.control_ids | stop_ids)
        if spec.raw:
            self.prompts.template = None
        else:
            self.prompts.use(spec.template, spec.template_vars)

    def recommended(self, think: str = "auto") -> Mapping[str, float]:
        """As `Engine.recommended`."""
        thinks = think != "off" and self.prompts.variables.get("enable_thinking") is not False
        return own_sampling(self._folder, self.name, self._facts.get("generation", {}), thinks=thinks)

    @property
    def speed(self) -> Speed:
        """How fast the model was on this machine, if it was measured."""
        return load_speed(self._folder) or Speed()

    def ids(self, job: "Job") -> list[int]:
        """The ids of a job's prompt. Raises as `Engine.generate_many`."""
        if isinstance(job.prompt, RopechatError):
            raise job.prompt
        if isinstance(job.prompt, str):
            return self.prompts.tokenizer.encode(job.prompt)
        messages, ids = split_prompt(job.prompt)
        if not messages:
            return ids
        thinking = AUTO if job.sampling is None else job.sampling.thinking
        return self.prompts.ids(messages, job.template_vars, job.prefix, thinking)


class SharedTokens:
    """Counts the tokens of prompts, and those to be read: beginnings that are the same are read once."""

    def __init__(self) -> None:
        self.tokens = self.read = self.longest = 0
        self._seen: set[int] = set()

    def add(self, ids: Sequence[int]) -> None:
        """Count a prompt."""
        self.tokens += len(ids)
        self.longest = max(self.longest, len(ids))
        chain, shared = 0, 0
        for start in range(0, len(ids) - _BLOCK, _BLOCK):
            chain = hash((chain, tuple(ids[start : start + _BLOCK])))
            shared += _BLOCK * (chain in self._seen)
            self._seen.add(chain)
        self.read += len(ids) - shared
