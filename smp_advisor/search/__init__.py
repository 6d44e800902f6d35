"""Every plan of a cluster, scored and ranked."""

from smp_advisor.search.rank import NEAR_BEST, OBJECTIVES, TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, Objective
from smp_advisor.search.search import SearchResult, search

__all__ = ["NEAR_BEST", "OBJECTIVES", "TECHNIQUE_GAIN", "TECHNIQUE_PROBABILITY", "Objective", "SearchResult", "search"]
