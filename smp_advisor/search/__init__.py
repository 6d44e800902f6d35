"""Every plan of a library, scored and ranked; the library for a run; clusters, and what would make a model fit."""

from smp_advisor.arguments import SMALLEST
from smp_advisor.search.candidates import (
    Request,
    fp16_reason,
    job_for,
    library_policy,
    pins_for,
    search_in_bf16_if_possible,
    titled,
)
from smp_advisor.search.clusters import (
    ANY,
    AUTO,
    COUNTS,
    ClusterSize,
    Goal,
    Limits,
    Places,
    Question,
    places_of,
    suitable,
)
from smp_advisor.search.decision import BatchChoice, Decision, decide
from smp_advisor.search.library import LibraryChoice, choose_library, family_to_infer, framework_of
from smp_advisor.search.policy import BatchPolicy, batch_policy, policy
from smp_advisor.search.rank import NEAR_BEST, OBJECTIVES, TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, Objective, Scores
from smp_advisor.search.search import SearchResult, alternatives, listed_plans, representatives, search
from smp_advisor.search.sizes import ClusterSizes, Progress, compare
from smp_advisor.search.ways_out import WayOut, WaysOut, decided, nothing_fits, ways_out

__all__ = [
    "ANY",
    "AUTO",
    "COUNTS",
    "NEAR_BEST",
    "OBJECTIVES",
    "SMALLEST",
    "TECHNIQUE_GAIN",
    "TECHNIQUE_PROBABILITY",
    "BatchChoice",
    "BatchPolicy",
    "ClusterSize",
    "ClusterSizes",
    "Decision",
    "Goal",
    "LibraryChoice",
    "Limits",
    "Objective",
    "Places",
    "Progress",
    "Question",
    "Request",
    "Scores",
    "SearchResult",
    "WayOut",
    "WaysOut",
    "alternatives",
    "batch_policy",
    "choose_library",
    "compare",
    "decide",
    "decided",
    "family_to_infer",
    "fp16_reason",
    "framework_of",
    "job_for",
    "library_policy",
    "listed_plans",
    "nothing_fits",
    "pins_for",
    "places_of",
    "policy",
    "representatives",
    "search",
    "search_in_bf16_if_possible",
    "suitable",
    "titled",
    "ways_out",
]
