"""docs/glossary.md: the terms that the interface explains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import smp_advisor as smpa
from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Glossary

Terms of the interface, the reports and these pages, as this product uses them. Names in `code` are fields of plans,
jobs and estimates. [A rank map](#a-rank-map) shows the degrees of a plan on its GPUs.
"""
RANKS = """## A rank map

The page of the advisor draws it, and `advice.ranks()` prints it: pipeline stage, tensor slice, shard and replica of
each GPU. This plan of SMP v1 has tensor parallel degree 2, pipeline parallel degree 2 and a sharded optimizer state.
GPUs with the same stage and slice, in different replicas, reduce their gradients together (`RDP_GROUP`); GPUs
with the same stage and replica divide each layer (`TP_GROUP`).

```text
{ranks}
```
"""


def page() -> str:
    terms = (line for term in data_file("notebook", "glossary")["term"] for line in section(term))
    return "\n".join([HEAD, *terms, RANKS.format(ranks=ranks())])


def ranks() -> str:
    """The GPUs of a small plan with four kinds of groups."""
    degrees = {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "shard_optimizer_state": True}
    advice = smpa.advise("10B", "ml.p4d.24xlarge", instance_count=2, library="smp-v1", sequence_length=512, **degrees)
    return str(advice.ranks())


def section(term: dict[str, Any]) -> Iterator[str]:
    yield f"## {term['term']}\n"
    yield f"{term['text']}\n"
    details = [f"Short: {term['short']}"] if "short" in term else []
    details += [", ".join(f"`{name}`" for name in term["settings"])]
    details += ["[{}]({})".format(*term["source"])] if "source" in term else []
    if any(details):
        yield f"{' · '.join(filter(None, details))}\n"
