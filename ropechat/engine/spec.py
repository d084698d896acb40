"""Which model, and how: the one way from a model's name to an engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropechat.engine.native import ModelLoad, ProgressMeter
from ropechat.models.resolve import BUILTIN, resolve

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.sampling.grammar import Grammar


@dataclass(frozen=True)
class ModelSpec:
    """A model with the options of its load and of its prompts.

    name: as for `models.resolve.resolve`. dtype to draft: as for `Engine.load`. template: the name of a chat
    template, for a model with several. template_vars: variables of all its prompts. raw: no chat template, as
    if the model had none.
    """

    name: str = BUILTIN
    dtype: str = "auto"
    kv_dtype: str = "auto"
    threads: int | None = None
    context: int | None = None
    cache: str | None = None
    speculative: str = "auto"
    draft: str | None = None
    template: str | None = None
    template_vars: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False

    def load(self, progress: ProgressMeter | None = None) -> "Engine":
        """Load the model, which must be on this machine. Raises as `Engine.load` and `PromptBuilder.use`."""
        return self.finish(self.start(progress))

    def start(self, progress: ProgressMeter | None = None) -> ModelLoad:
        """Begin to load the model, in the background. Raises as `Engine.load`."""
        return ModelLoad(
            resolve(self.name),
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            threads=self.threads,
            context=self.context,
            cache=self.cache,
            speculative=self.speculative,
            draft=self.draft,
            progress=progress,
        )

    def finish(
        self, loading: ModelLoad, first_prompt: str = "", grammar: "Grammar | None" = None
    ) -> "Engine":
        """The engine of `start`. first_prompt, grammar: prepared meanwhile. Raises as `load`."""
        from ropechat.engine.engine import Engine  # imported here, while the weights load

        engine = Engine.from_load(loading, first_prompt, grammar)
        if self.raw:
            engine.prompts.template = None
        else:
            engine.prompts.use(self.template, self.template_vars)
        return engine
