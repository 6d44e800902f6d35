"""EST506: the container image and the instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import not_covered
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.checks.case import SDK_2, Case, Change, Hit
from smp_advisor.estimators.images import is_version, known_pairs, library_version, version_of_older_pair
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.support import nearest_supported, require_supported_instance
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["image"]

_LOCAL = ("local", "local_gpu")


def image(case: Case) -> Iterator[Hit]:
    """EST506: versions without an image, and instances that the library cannot use."""
    if not case.of_sagemaker:
        return
    yield from _versions(case)
    yield from _instance(case)


def _versions(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    library, name = case.library, schema(case.library).name
    framework, python = configuration.get("framework_version"), configuration.get("py_version")
    if configuration.framework == "huggingface" and case.smp_launcher == "torchrun" and configuration.form == SDK_2:
        yield _hit(
            case,
            ("transformers_version", "framework_version"),
            "HuggingFace estimator",
            {},
        )
        return
    tensorflow_compiler = not case.smp_launcher and configuration.framework == "tensorflow"
    if not isinstance(framework, str) or tensorflow_compiler or "tensorflow_version" in configuration.settings:
        return
    python_version = python if isinstance(python, str) else None
    call = configuration.tables.get("estimator")
    if (
        python_version is None
        and configuration.form == SDK_2
        and call is not None
        and "image_uri" not in configuration.settings
    ):
        if configuration.unknown("py_version"):
            return
        pair = _nearest_pair(library, framework)
        yield _hit(
            case,
            ("framework_version",),
            "no py_version",
            {"framework": framework, "python": pair[1]},
            (Change(call, "py_version", pair[1]),),
        )
        return
    if _has_image(library, framework, python_version, short=case.smp_launcher != "torchrun"):
        return
    pair = _nearest_pair(library, framework)
    shown = f"framework version {framework}" + (f" and {python_version}" if python_version else "")
    changes = case.setting_change("framework_version", pair[0]) + case.setting_change("py_version", pair[1])
    if configuration.settings["framework_version"].key == "image_uri" or configuration.framework == "huggingface":
        changes = ()
    yield _hit(
        case,
        ("framework_version", "py_version", "image_uri"),
        "no image",
        {"library": name, "versions": shown, "framework": pair[0], "python": pair[1]},
        changes,
    )


def _has_image(library: str, framework: str, python: str | None, *, short: bool) -> bool:
    """Whether the pair is in AWS's tables. Short versions count if the SDK resolves them."""
    if not is_version(framework) or (framework.count(".") == 1 and not short):
        return False
    if library_version(library, framework, python) is not None:
        return True
    return version_of_older_pair(library, framework, python) is not None


def _nearest_pair(library: str, framework: str) -> tuple[str, str]:
    """Image with the nearest framework version; the newer one of two."""
    pairs = known_pairs(library)
    if not is_version(framework):
        return pairs[-1]

    def distance(pair: tuple[str, str]) -> tuple[int, int, int]:
        target, there = (*release(framework), 0, 0)[:3], (*release(pair[0]), 0, 0)[:3]
        gaps = [abs(first - second) for first, second in zip(target, there, strict=True)]
        return gaps[0], gaps[1], gaps[2]

    best = min(distance(pair) for pair in pairs)
    return [pair for pair in pairs if distance(pair) == best][-1]


def _instance(case: Case) -> Iterator[Hit]:
    kind = case.configuration.get("instance_type")
    if not isinstance(kind, str) or kind in _LOCAL or not_covered(kind):
        return
    try:
        machine = known_instance(kind)
    except AdvisorError as error:
        # Hardware that is not in the table may exist; a misspelled type does not.
        hint = str(error).partition(": ")[2].partition(";")[0]
        yield _hit(case, ("instance_type",), "unknown instance", {"instance": kind, "hint": hint})
        return
    try:
        require_supported_instance(case.library, machine)
    except AdvisorError as error:
        problem, _, _ = str(error).rstrip(".").partition("; ")
        near = nearest_supported(case.library, machine)
        yield _hit(
            case,
            ("instance_type",),
            "instance",
            {"problem": problem, "nearest": near.name, "gpus": f"{near.gpus} x {near.gpu_label}"},
            case.setting_change("instance_type", near.name) if case.configuration.form != "recipe" else (),
        )


def _hit(
    case: Case, names: tuple[str, ...], variant: str, values: dict[str, str], changes: tuple[Change, ...] = ()
) -> Hit:
    return Hit(id="EST506", span=case.span_of(*names), variant=variant, values=values, changes=changes)
