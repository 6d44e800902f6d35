"""Questions about clusters: which one fits, which is fast or cheap enough, and what would make a model fit."""

from smp_advisor.sizing.cluster_size import ClusterSize
from smp_advisor.sizing.curve import ClusterSizes
from smp_advisor.sizing.limits import Limits
from smp_advisor.sizing.no_fit import decided, nothing_fits
from smp_advisor.sizing.places import COUNTS, Places, places_of
from smp_advisor.sizing.question import Question
from smp_advisor.sizing.sweep import Progress, compare
from smp_advisor.sizing.ways import WayOut, WaysOut, ways_out

__all__ = [
    "COUNTS",
    "ClusterSize",
    "ClusterSizes",
    "Limits",
    "Places",
    "Progress",
    "Question",
    "WayOut",
    "WaysOut",
    "compare",
    "decided",
    "nothing_fits",
    "places_of",
    "ways_out",
]
