"""What the model-parallel library can express: plans, parameters, versions, instances."""

from smp_advisor.library.check import check_against, mismatches
from smp_advisor.library.plan import Plan
from smp_advisor.library.plans import KINDS
from smp_advisor.library.schema import Parameter, Schema, schema
from smp_advisor.library.support import nearest_supported, require_supported_instance, supported_instances
from smp_advisor.library.validation import Violation, violations
from smp_advisor.library.version import Image, image, versions

__all__ = [
    "KINDS",
    "Image",
    "Parameter",
    "Plan",
    "Schema",
    "Violation",
    "check_against",
    "image",
    "mismatches",
    "nearest_supported",
    "require_supported_instance",
    "schema",
    "supported_instances",
    "versions",
    "violations",
]
