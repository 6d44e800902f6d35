"""Clusters of machines. Machine types come from a dated table or from custom figures."""

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.gpu import Gpu, gpu, gpus
from smp_advisor.cluster.instance import Instance
from smp_advisor.cluster.table import instance, instances

__all__ = ["Cluster", "Gpu", "Instance", "gpu", "gpus", "instance", "instances"]
