"""Settings that follow from another: what else must change when one control moves."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, cast

from smp_advisor.libraries.axes import divisors
from smp_advisor.notebook.library_settings import follow_fields
from smp_advisor.notebook.settings import prescaled, shard_degree, sharded

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.notebook.settings import Setting, Settings

__all__ = ["follow"]


def follow(advice: Advice, before: Settings, name: str, value: Setting) -> Settings:
    """The settings after `name` moved to `value`, every other held as far as that makes sense.

    Where the job fixes the global batch, the batch size follows the number of replicas; parameters are sharded over no
    more GPUs than there are replicas, and over all of them where they were: a slider that goes and comes back leads
    back. The active microbatches stay the library's default where they were, and never
    exceed the microbatches. The simple schedule keeps all of them active, so that fewer make it the interleaved one.
    """
    if advice.plan.library != "smp-v1":
        return follow_fields(advice, before, name, value)
    after: Settings = {**before, name: value}
    if name in {"tensor_parallel_degree", "pipeline_parallel_degree"}:
        _keep_global_batch(advice, after)
        _fit_shards(advice, before, after)
    if name == "pipeline":
        after["active_microbatches"] = after["microbatches"] if value == "simple" else _default_active(after)
    elif name == "active_microbatches":
        if value != after["microbatches"]:
            after["pipeline"] = "interleaved"
    elif before["active_microbatches"] == _default_active(before) and after["pipeline"] != "simple":
        after["active_microbatches"] = _default_active(after)
    elif after["pipeline"] == "simple":
        after["active_microbatches"] = after["microbatches"]
    else:
        after["active_microbatches"] = min(_int(after, "active_microbatches"), _int(after, "microbatches"))
    return after


def _keep_global_batch(advice: Advice, after: Settings) -> None:
    tensor, pipeline = _int(after, "tensor_parallel_degree"), _int(after, "pipeline_parallel_degree")
    replicas = advice.cluster.gpus // (pipeline * (tensor if prescaled(advice, tensor) else 1))
    fixed = advice.job.global_batch_size
    # A batch that does not divide is left as it was: the estimate then says what is wrong.
    if fixed is None or replicas < 1 or fixed % replicas:
        return
    batch = fixed // replicas
    after["batch_size"] = batch
    after["microbatches"] = max(m for m in divisors(batch) if m <= max(1, _int(after, "microbatches")))


def _fit_shards(advice: Advice, before: Settings, after: Settings) -> None:
    degree, most = shard_degree(after["sharding"]), _data_parallel_degree(advice, after)
    if degree > 1:
        whole = degree == _data_parallel_degree(advice, before)
        after["sharding"] = sharded(most if whole else gcd(degree, most))


def _data_parallel_degree(advice: Advice, settings: Settings) -> int:
    together = _int(settings, "tensor_parallel_degree") * _int(settings, "pipeline_parallel_degree")
    return max(1, advice.cluster.gpus // together)


def _default_active(settings: Settings) -> int:
    return min(_int(settings, "pipeline_parallel_degree") + 2, _int(settings, "microbatches"))


def _int(settings: Settings, name: str) -> int:
    return cast("int", settings[name])
