"""``%smp_check`` for configurations of jobs: estimators, requests and recipes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.files import SCRIPT, read_bytes
from smp_advisor.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.estimators import EstimatorReport

__all__ = ["check_if_estimator", "plain_names"]

_CONFIGURATIONS = (".yaml", ".yml", ".json")


def check_if_estimator(
    source: str | Path,
    names: Mapping[str, Any],
    advice: Advice | None = None,
    *,
    cluster: Cluster | Instance | None = None,
    forced: bool = False,
) -> EstimatorReport | None:
    """Check the configuration of a job; None if `source` is a training script.

    Parameters
    ----------
    source
        Path of a file, or the text of a cell.
    names
        Variables of the notebook: those with plain data resolve names that other cells define.
    advice
        Recommendation with the model and the job for the checks of memory.
    cluster
        Cluster of the job, for configurations that name no instance.
    forced
        Whether to check it as a configuration in any case.
    """
    with uninterrupted():
        from smp_advisor.estimators import check_estimator, looks_like_estimator

    text = source if isinstance(source, str) else _text_of(source)
    by_name = isinstance(source, Path) and source.suffix.lower() in _CONFIGURATIONS
    forced = forced or cluster is not None
    if not forced and not by_name and (text is None or not looks_like_estimator(text)):
        return None
    model, job = (advice.model, advice.job) if advice is not None else (None, None)
    variables = plain_names(names, text or "")
    return check_estimator(source, model=model, job=job, cluster=cluster, variables=variables)


def _text_of(path: Path) -> str | None:
    """Text of a Python file; None for notebooks, which may contain both kinds of cells, and for files without text."""
    try:
        return read_bytes(path, SCRIPT).decode("utf-8") if path.suffix.lower() == ".py" else None
    except (OSError, ValueError):  # ValueError: a path with NUL, too
        return None


def plain_names(names: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Numbers, texts and collections among the notebook's variables that the text uses."""
    used = set(re.findall(r"[A-Za-z]\w*", text))
    kinds = (bool, int, float, str, dict, list, tuple)
    return {name: value for name, value in names.items() if name in used and isinstance(value, kinds)}
