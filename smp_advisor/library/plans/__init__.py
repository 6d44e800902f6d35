"""The plan of each library."""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import Any, cast

from smp_advisor.library.plan import Plan
from smp_advisor.library.plans.data_parallel import DdpPlan, FsdpPlan
from smp_advisor.library.plans.smp_v1 import SmpV1Plan
from smp_advisor.library.plans.smp_v1_tensorflow import SmpV1TensorFlowPlan
from smp_advisor.library.plans.smp_v2 import SmpV2Plan
from smp_advisor.library.plans.training_compiler import TrainingCompilerPlan

__all__ = ["KINDS", "DdpPlan", "FsdpPlan", "SmpV1Plan", "SmpV1TensorFlowPlan", "SmpV2Plan", "TrainingCompilerPlan"]

KINDS: dict[str, type[Plan]] = {
    "smp-v1": SmpV1Plan,
    "smp-v1-tensorflow": SmpV1TensorFlowPlan,
    "smp-v2": SmpV2Plan,
    "training-compiler": TrainingCompilerPlan,
    "ddp": DdpPlan,
    "fsdp": FsdpPlan,
}


def _advertise() -> None:
    """Give ``Plan(`` the keywords of every library, so that notebooks complete and document them.

    The kinds get signatures of their own, because they would inherit this one.
    """
    keywords: dict[str, Parameter] = {}
    for kind in KINDS.values():
        own = list(signature(cast("Any", kind).__init__).parameters.values())[1:]
        cast("Any", kind).__signature__ = Signature(own)
        for one in own:
            keywords.setdefault(one.name, one)
    cast("Any", Plan).__signature__ = Signature(list(keywords.values()))


_advertise()
