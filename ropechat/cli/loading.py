"""From the options of a command to a loaded model."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ropechat import builtin
from ropechat.cli.common import model_folders
from ropechat.cli.exit_codes import check_signals, say
from ropechat.cli.grammar_options import naming_option
from ropechat.cli.status import ProgressLine
from ropechat.models.resolve import LAST

if TYPE_CHECKING:
    from ropechat.engine.engine import Engine
    from ropechat.engine.native import ProgressMeter
    from ropechat.engine.spec import ModelSpec
    from ropechat.engine.templates.template import ChatTemplate
    from ropechat.sampling.grammar import Grammar

NO_TEMPLATE = "note: this model has no chat template; it continues the text"
_PACK_S = 1.0  # how long the end of a command may wait for packed weights
_OPTIONS = ("dtype", "kv_dtype", "threads", "context", "cache", "draft", "template", "template_vars")


class GivenModel(NamedTuple):
    """The model that the options name. download: whether a missing one is downloaded without asking.

    note: why it is another one than wanted. chosen: whether a person chose it, now or before.
    """

    spec: "ModelSpec"
    download: bool
    note: str = ""
    chosen: bool = True

    def find(self) -> "ModelSpec":
        """The spec with the path of the model, after a missing one is downloaded.

        Raises as `find_or_download`.
        """
        from ropechat.cli.download import find_or_download

        spec, folders = self.spec, model_folders()
        draft = spec.draft if spec.speculative != "off" else None
        if draft is not None:
            draft = str(find_or_download(draft, unasked=self.download, folders=folders))
        name = str(find_or_download(spec.name, unasked=self.download, folders=folders))
        return replace(spec, name=name, draft=draft)

    def or_first(self, wanted: str) -> "GivenModel":
        """Another model instead, downloaded without asking if it is not here; if that fails, this one."""
        from ropechat.cli.download import get_first
        from ropechat.errors import FileAccessError, ModelNotFoundError

        try:
            get_first(wanted, model_folders())
        except (ModelNotFoundError, FileAccessError) as error:
            reason = str(error).partition(": ")[2] or str(error)  # without the long name
            note = f"{wanted} was not downloaded ({reason}), so {self.spec.name} is opened"
            return self._replace(note=note)
        return self._replace(spec=replace(self.spec, name=wanted), chosen=True)


def opening_of(name: str | None, *, follows_last: bool = False) -> tuple[str, str, bool]:
    """(the model to open, why it is another one than wanted, whether a person chose it).

    name: what -m, the environment or the settings name. follows_last: whether the command opens the model
    that the chat opened last if nothing names another.
    """
    if name != LAST and (name is not None or not follows_last):
        return name or builtin.NAME, "", name is not None
    from ropechat.models.last import find_last  # imported here: scripts name their models

    return find_last(model_folders())


def take_name(given: dict[str, Any], words: tuple[str, ...]) -> tuple[str, ...]:
    """Words of a prompt without the first one, if that names the model: a name of the catalog with its size.

    With -m all of them are the prompt. The name goes to `given`.
    """
    if not words or ":" not in words[0] or _given_by_flag("model"):
        return words
    from ropechat.models.catalog import find_short  # imported here: few prompts look like a name

    if find_short(words[0]) is None:
        return words
    given["model"] = words[0]
    return words[1:]


def take_argument(given: dict[str, Any], name: str | None) -> None:
    """The argument MODEL of a command, which is the same as -m. Raises UsageError if both are given."""
    if name is not None and _given_by_flag("model"):
        raise click.UsageError(f"{name}: -m names the model already; omit one of them")
    if name is not None:
        given["model"] = name


def _given_by_flag(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def take_model(given: dict[str, Any], *, raw: bool = False, follows_last: bool = False) -> GivenModel:
    """Remove the options of the model and of the chat template from `given` and return them.

    raw: use no chat template, as if the model had none. follows_last: as for `opening_of`. Raises UsageError.
    """
    from ropechat.engine.spec import ModelSpec

    options = {name: given.pop(name) for name in _OPTIONS if name in given}
    if raw and (options.get("template") is not None or options.get("template_vars")):
        raise click.UsageError("--raw uses no chat template; omit --template and --template-var")
    speculative = "auto" if given.pop("speculative", True) else "off"
    name, note, chosen = opening_of(given.pop("model"), follows_last=follows_last)
    spec = ModelSpec(name, speculative=speculative, raw=raw, **options)
    return GivenModel(spec, given.pop("download"), note, chosen)


def load(
    spec: "ModelSpec",
    *,
    quiet: bool = False,
    screen: bool = False,
    first_prompt: str = "",
    grammar: "Grammar | None" = None,
    line: ProgressLine | None = None,
    progress: "ProgressMeter | None" = None,
) -> "Engine":
    """Load a model that was found; at the end of the command its packed weights are written for a moment.

    Warnings about the model and notes about its prompts go to stderr. quiet: no notes. screen: neither; a
    full-screen app uses the terminal. first_prompt, grammar: as for `ModelSpec.finish`. line: shows how far
    the load is. progress: as for `Engine.load`.
    """
    from ropechat.engine.native import exit_when_cut

    if not spec.raw:
        from ropechat.engine.templates.template import warm

        warm(spec.name)
    exit_when_cut(screen=screen)
    check_signals()
    line = line or ProgressLine("none" if screen else "line")
    with spec.start(progress) as loading, line.watch(loading.progress.read), naming_option(grammar):
        engine = spec.finish(loading, first_prompt, grammar)
    check_signals()
    if not screen:
        say_warnings(engine.facts["warnings"])
    if not spec.raw and not quiet and not screen:
        if not engine.has_chat_template:
            say(NO_TEMPLATE)
        for text in unused_variables(engine.prompts.template, spec.template_vars):
            say(text)
        engine.prompts.on_note = lambda text: say(f"note: {text}")
    if (command := click.get_current_context(silent=True)) is not None:
        command.call_on_close(lambda: _keep_pack(engine))
    return engine


def _keep_pack(engine: "Engine") -> None:
    """Write packed weights for the next starts, for at most `_PACK_S`."""
    with contextlib.suppress(KeyboardInterrupt):
        engine.finish_pack(_PACK_S if sys.exc_info()[0] is None else 0.0)


def say_warnings(warnings: Sequence[str]) -> None:
    """Print warnings about a model, one line each."""
    for warning in warnings:
        say(f"warning: {warning}")


def unused_variables(template: "ChatTemplate | None", variables: Mapping[str, Any]) -> Sequence[str]:
    """A note for each variable that the template does not use: possibly a typo."""
    return [
        f"note: --template-var: {name}: this model's chat template does not use it; it has no effect"
        for name in variables
        if template is not None and not template.mentions(name)
    ]
