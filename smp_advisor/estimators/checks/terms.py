"""EST506 and EST511: rules that hold for jobs of every library, the same as those of exported jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.containers import containers_of
from smp_advisor.estimators.checks.case import SDK_2, Case, Hit
from smp_advisor.estimators.terms import span_of_term, terms_of
from smp_advisor.job_rules import Fault, job_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.estimators.checks.case import Change

__all__ = ["hardware", "terms"]

_HARDWARE = {"instance_type": "instance type", "container": "container"}
"""Terms of EST506, and its variants."""
_PLACES = {
    "instance_type": ("instance_type",),
    "container": ("framework_version", "image_uri", "instance_type"),
    "launched": ("instance_type",),
}
"""Settings in the text for a term."""


def hardware(case: Case) -> Iterator[Hit]:
    """EST506: an instance that does not exist, and a container that cannot use the instance."""
    for fault in job_faults(terms_of(case.configuration)):
        if fault.setting not in _HARDWARE or (case.of_sagemaker and fault.setting == "instance_type"):
            continue  # the check of the library reports it with the nearest instance that the library supports
        yield _hit(case, fault, "EST506", _HARDWARE[fault.setting], _changes(case, fault))
    yield from _only_in_version_3(case)


def _only_in_version_3(case: Case) -> Iterator[Hit]:
    """An estimator of version 2 with a container that only version 3 of the SDK has."""
    job = terms_of(case.configuration)
    if case.configuration.form != SDK_2 or "image_uri" in case.configuration.settings or job.container is None:
        return
    if job.container.sdk_2 is None and job.launched:
        newest = [row for row in containers_of(job.container.repository) if row.sdk_2 is not None][-1]
        values = {
            "framework": f"{job.container.title} with torchrun",
            "remedy": f"Use framework version {newest.framework_version} with {newest.py_version}, or version 3 of the"
            " SDK",
        }
        yield Hit(id="EST506", span=case.span_of("framework_version"), variant="version 3 only", values=values)


def terms(case: Case) -> Iterator[Hit]:
    """EST511: terms that SageMaker refuses, or that do not fit together."""
    for fault in job_faults(terms_of(case.configuration)):
        # The check of the library's launcher reports the missing one of SageMaker's own libraries.
        if fault.setting not in _HARDWARE and not (case.of_sagemaker and fault.setting == "launched"):
            variant = "term" if fault.severity == "error" else "no launcher"
            yield _hit(case, fault, "EST511", variant, ())


def _hit(case: Case, fault: Fault, check: str, variant: str, changes: tuple[Change, ...]) -> Hit:
    values = {"problem": fault.problem, "remedy": fault.remedy}
    span = span_of_term(case.configuration, fault.setting) or case.span_of(*_PLACES.get(fault.setting, ()))
    return Hit(id=check, span=span, variant=variant, values=values, changes=changes)


def _changes(case: Case, fault: Fault) -> tuple[Change, ...]:
    configuration = case.configuration
    versions = configuration.settings.get("framework_version")
    # The version of transformers selects an image of Hugging Face, and a name of an image has several parts.
    if versions is None or versions.key not in ("framework_version", "version") or configuration.framework != "pytorch":
        return ()
    if case.of_sagemaker:
        return ()
    changes = [case.setting_change(name, value) for name, value in fault.changes.items()]
    return tuple(change for group in changes for change in group) if all(changes) else ()
