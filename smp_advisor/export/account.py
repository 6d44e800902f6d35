"""Checks of the options that an account requires: role, tags, keys, environment, image and region."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export import checks
from smp_advisor.export.facts import launch_facts
from smp_advisor.export.storage import location

if TYPE_CHECKING:
    from smp_advisor.export.options import JobOptions

__all__ = ["check_account"]

_PARTITION = "arn:aws[a-z-]*"
_PATTERNS = {
    # Option: pattern, and an example.
    "role": (
        rf"{_PARTITION}:iam::\d{{12}}:role/[\w+=,.@/-]{{1,512}}|[\w+=,.@-]{{1,64}}",
        "'arn:aws:iam::123456789012:role/training'",
    ),
    "training_plan": (
        rf"{_PARTITION}:sagemaker:[a-z0-9-]+:\d{{12}}:training-plan/[A-Za-z0-9-]{{1,64}}",
        "'arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine'",
    ),
    "image_uri": (r"[\w.:/@-]{1,255}", "'123456789012.dkr.ecr.us-west-2.amazonaws.com/training:1'"),
    "volume_kms_key": (r"[\w:/-]{1,2048}", "'alias/training'"),
    "output_kms_key": (r"[\w:/-]{1,2048}", "'alias/training'"),
    "region": (r"[a-z]{2}(-[a-z]+)+-\d", "'us-west-2'"),
    "input_mode": ("File|FastFile", "'FastFile'"),
}
_TAG = re.compile(r"[\w .:/=+@-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def check_account(options: JobOptions) -> None:
    """Raise `ExportError` for an option of the account that SageMaker would reject."""
    for name, (pattern, example) in _PATTERNS.items():
        value = getattr(options, name)
        if value is not None and not (isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII)):
            raise ExportError(f"{name} must be text such as {example}, not {value!r}.")
    if options.output_path is not None and not isinstance(location("output_path", options.output_path), str):
        raise ExportError(f"output_path must be an S3 URI such as 's3://bucket/prefix', not {options.output_path!r}.")
    if options.retry_attempts is not None:
        checks.integer("retry_attempts", options.retry_attempts, launch_facts()["limits"]["retry_attempts"])
    for name in ("tags", "environment", "metrics"):
        _check_texts(name, getattr(options, name))
    _check_tags(options.tags or {})
    _check_environment(options.environment or {})
    _check_metrics(options.metrics or {})
    if options.training_plan is not None and options.spot:
        raise ExportError("A training plan reserves its instances, so it has no spot instances: choose one of them.")


def _check_texts(name: str, entries: object) -> None:
    """Texts by name, with their limits in CreateTrainingJob."""
    limit = launch_facts()["limits"][name]
    if entries is None:
        return
    if not isinstance(entries, Mapping) or not all(isinstance(text, str) for item in entries.items() for text in item):
        raise ExportError(f"{name} must be a dictionary of strings such as {limit['example']}, not {entries!r:.200}.")
    if len(entries) > limit["entries"]:
        raise ExportError(f"{name} has {len(entries)} entries, and SageMaker accepts {limit['entries']}: pass fewer.")
    for key, value in entries.items():
        if not 1 <= len(key) <= limit["key_characters"] or len(value) > limit["value_characters"]:
            raise ExportError(
                f"The names in {name} have 1 to {limit['key_characters']} characters and the values at most"
                f" {limit['value_characters']}, unlike {key[:40]!r}: shorten them."
            )


def _check_tags(tags: Mapping[str, str]) -> None:
    for key, value in tags.items():
        if key.lower().startswith("aws:") or not (_TAG.fullmatch(key) and _TAG.fullmatch(value)):
            raise ExportError(
                f"The tag {key!r} must not start with aws:, and tags have letters, digits, spaces and the characters"
                " . : / = + @ - _ only: change it."
            )


def _check_environment(environment: Mapping[str, str]) -> None:
    for key in environment:
        if not _VARIABLE.fullmatch(key):
            raise ExportError(
                f"The name of an environment variable has letters, digits and underscores, unlike {key!r}: change it."
            )


def _check_metrics(metrics: Mapping[str, str]) -> None:
    for key, pattern in metrics.items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ExportError(f"The pattern of the metric {key!r} is not a regular expression: {error}.") from None
        if not groups:
            raise ExportError(
                f"The pattern of the metric {key!r} must have a group with the value, such as 'loss ([0-9.]+)'."
            )
