"""Clusters of machines. Machine types come from a dated table or from custom figures."""

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import Gpu, Instance, gpu, gpus, instance, instances

__all__ = ["Cluster", "Gpu", "Instance", "gpu", "gpus", "instance", "instances"]
