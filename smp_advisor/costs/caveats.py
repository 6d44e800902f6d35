"""Parts of a plan's communication that no measured collective covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.links import MOST_MEASURED, is_first_generation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.world import World
    from smp_advisor.libraries.layout import Layout

__all__ = ["communication_caveats"]

_PRODUCTION_GPUS = 128
"""GPUs of the smallest production run that took longer than predicted."""


def communication_caveats(cluster: Cluster, layout: Layout, world: World) -> Iterator[str]:
    """Sentences about the communication of one plan across nodes that no measurement confirms.

    Parameters
    ----------
    layout
        Layout of one plan.
    """
    shards, sharded = int(world.shards), int(layout.shard_level) > 0
    if cluster.nodes == 1 or not sharded or shards <= cluster.gpus_per_node:
        return
    instance = cluster.instance
    yield (
        "No reduce-scatter across nodes was measured: it is counted as an all-gather of the same size."
        if instance.efa
        else "Collectives across nodes without EFA are counted with constants fitted to published training runs."
    )
    if is_first_generation(cluster):
        yield (
            f"No all-gather was measured on {instance.name}: its rate is scaled from ml.p5.48xlarge by the network, its"
            " delay by all-reduces of a few bytes on p4d and p4de."
        )
        if int(layout.shard_level) >= 3 and shards >= _PRODUCTION_GPUS:
            yield (
                "Production runs that shard all parameters over 128 to 512 GPUs on p4d and p4de took 1.2 to 1.8 times"
                " the predicted time (Meta on AWS, IDEFICS-80B): expect a slower step than predicted."
            )
    if shards > MOST_MEASURED:
        yield f"No collective over more than {MOST_MEASURED} GPUs was measured: that over {shards} is extrapolated."
