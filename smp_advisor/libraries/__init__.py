"""Training libraries: plans, parameters, versions, instances, search spaces, and one record for each library."""

from smp_advisor.libraries.library import DEFAULT_LIBRARY, LIBRARIES, Library, get_library, libraries, register
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.schema import Parameter, Schema, schema
from smp_advisor.libraries.validation import Violation, check_against, mismatches, violations
from smp_advisor.libraries.version import (
    Image,
    image,
    nearest_supported,
    require_supported_instance,
    supported_instances,
    versions,
)

__all__ = [
    "DEFAULT_LIBRARY",
    "LIBRARIES",
    "Image",
    "Library",
    "Parameter",
    "Plan",
    "Schema",
    "Violation",
    "check_against",
    "get_library",
    "image",
    "libraries",
    "mismatches",
    "nearest_supported",
    "register",
    "require_supported_instance",
    "schema",
    "supported_instances",
    "versions",
    "violations",
]
