"""Write docs/libraries.md: what each library can express, from the schema that validates, searches and explains.

Run it with ``python scripts/libraries_page.py``; a test holds the page to what this prints.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.guidance.practices import order, practice
from smp_advisor.libraries.families import supported_families
from smp_advisor.libraries.registry import LIBRARIES
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.support import supported_instances
from smp_advisor.libraries.version import default_version, facts, images

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.libraries.schema import Parameter

PAGE = Path(__file__).parents[1] / "docs" / "libraries.md"

HEAD = """# What each library can express

Written by `scripts/libraries_page.py` from the package's data files, which carry their sources and dates. The same
entries validate plans, bound the search, label the widget's controls and order the exported cells. Parameters go to the
estimator (`Plan.parameters`), settings to the training script (`Plan.hyperparameters`).

`advise(..., library="auto")` chooses: a model of which a whole replica fits one GPU gets DDP (or Training Compiler,
where its framework and a tested model speak for it); one that has to be divided gets SMP v2 where AWS lists the
instance, plain FSDP elsewhere, SMP v1 where the script is bound to PyTorch 1.x, and SMP v1 for TensorFlow.
"""

TECHNIQUES = ("tensor_parallel", "context_parallel", "expert_parallel", "fp8", "prescaled_batch")


def default_of(parameter: Parameter) -> str:
    if parameter.default_rule:
        return f"`{parameter.default_rule}`"
    return "" if parameter.default is None else f"`{parameter.default!r}`"


def allowed(parameter: Parameter) -> str:
    if parameter.choices:
        return ", ".join(f"`{choice}`" for choice in parameter.choices)
    low, high = parameter.minimum, parameter.maximum
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"from {low:g}" if low is not None else ""


def table(parameters: list[Parameter]) -> Iterator[str]:
    yield "| name | type | default | allowed | since | what it does |"
    yield "|---|---|---|---|---|---|"
    for one in parameters:
        since = "" if one.since == "1.0.0" else one.since
        yield f"| `{one.key}` | {one.type} | {default_of(one)} | {allowed(one)} | {since} | {one.doc} |"


def section(library: str) -> Iterator[str]:
    stated = schema(library)
    yield f'## {stated.name}: `library="{library}"`\n'
    if "discontinued" in facts(library):
        yield f"{facts(library)['discontinued']}\n"
    users = [one for one in stated.parameters if one.audience == "user"]
    if users:
        yield "Parameters:\n"
        yield from table(users)
        yield ""
    yield "Settings of the training script:\n"
    yield from table(list(stated.settings))
    yield ""
    if stated.rules:
        yield "Rules:\n"
        yield from (f"- {rule.what}: {rule.fix}." for rule in stated.rules)
        yield ""
    yield from containers(library)
    yield from instances(library)
    for technique in TECHNIQUES:
        families = supported_families(technique, library)
        if families:
            yield f"{technique.replace('_', ' ').capitalize()}: {', '.join(families)}.\n"
    yield "Explained in this order: " + "; ".join(practice(one, library).title for one in order(library)) + ".\n"


def containers(library: str) -> Iterator[str]:
    yield f"Containers (a plan is written for {default_version(library)} unless it says otherwise):\n"
    yield "| version | framework | Python | estimator | note |"
    yield "|---|---|---|---|---|"
    for one in images(library):
        framework = f"{one.framework_version}" + (
            f", transformers {one.transformers_version}" if one.transformers_version else ""
        )
        note = one.note or (f"The image tag holds {one.superseded_by} by now." if one.superseded_by else "")
        yield f"| {one.version} | {framework} | {one.py_version} | `{one.estimator}` | {note} |"
    yield ""


def instances(library: str) -> Iterator[str]:
    stated = facts(library)["instances"]
    if stated.get("any"):
        listed = "every GPU instance"
    elif "families" in stated:
        listed = f"the families {', '.join(stated['families'])}"
    else:
        listed = ", ".join(one.name for one in supported_instances(library))
    yield f"Instances: {listed} ({stated['source']}).\n"


def page() -> str:
    return "\n".join([HEAD, *(text for library in LIBRARIES for text in section(library))]).rstrip() + "\n"


def main() -> int:
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
