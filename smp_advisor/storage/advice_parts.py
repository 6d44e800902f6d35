"""Fields of advice with a form of their own in a file: the listed plans, the calls that repeat it, traced ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.errors import StorageError
from smp_advisor.libraries.plan import Plan
from smp_advisor.storage.kinds import advise_function, kinds
from smp_advisor.storage.search_rows import result_as_plain, result_from_plain
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["advice_as_plain", "advice_from_plain"]

_CALLS = ("request", "call")
_STORED = (str, int, float, Model)
"""Descriptions of a model that a file holds."""


def advice_as_plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a form of their own, with parts that `plain` converts."""
    calls = {name: _call(fields[name], fields["model"]) for name in _CALLS}
    traced = [[*key, rank] for key, rank in fields["traced_ranks"].items()]
    return {"result": result_as_plain(fields["result"]), "traced_ranks": traced, **calls}


def _call(call: partial[Any] | None, model: Model) -> dict[str, Any] | None:
    """Arguments of a call of `advise`. A model that no file holds, such as a module, is replaced by what was read."""
    if call is None:
        return None
    arguments, keywords = list(call.args), dict(call.keywords)
    if arguments and not _is_stored(arguments[0]):
        arguments[0] = model
    if "model" in keywords and not _is_stored(keywords["model"]):
        keywords["model"] = model
    return {"arguments": arguments, "keywords": {name: value for name, value in keywords.items() if value is not None}}


def _is_stored(value: object) -> bool:
    return isinstance(value, _STORED)


def advice_from_plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `advice_as_plain`, restored.

    Raises
    ------
    StorageError
        A field is not valid.
    """
    advise = advise_function()
    restored = {name: _call_of(advise, fields.get(name)) for name in _CALLS}
    result, traced = fields.get("result"), fields.get("traced_ranks", ())
    if not isinstance(result, Mapping) or not isinstance(traced, tuple):
        raise StorageError("The stored alternatives or traced ranks are not valid.")
    return {
        "result": result_from_plain(result, fields["job"]),
        "traced_ranks": dict(map(_traced, traced)),
        **restored,
    }


def _traced(entry: Any) -> tuple[tuple[Cluster, Job, Plan], Any]:
    types = (Cluster, Job, Plan, kinds()["TracedRank"])
    if not isinstance(entry, tuple) or len(entry) != len(types) or not all(map(isinstance, entry, types)):
        raise StorageError("A stored traced rank lacks its cluster, job or plan.")
    cluster, job, plan, rank = entry
    return (cluster, job, plan), rank


def _call_of(advise: Callable[..., Any], data: Any) -> partial[Any] | None:
    if data is None:
        return None
    if not isinstance(data, Mapping) or data.keys() != {"arguments", "keywords"}:
        raise StorageError("A stored call of advise() is not valid.")
    arguments, keywords = data["arguments"], data["keywords"]
    if not isinstance(arguments, tuple) or not isinstance(keywords, Mapping):
        raise StorageError("A stored call of advise() is not valid.")
    return partial(advise, *arguments, **keywords)
