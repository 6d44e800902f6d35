"""Changes that a check must notice and mend in its place; the examples of the catalog show every message alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smp_advisor.workload import Model
from tests.estimators import cells


@dataclass(frozen=True)
class Case:
    """`old` replaced by `new` in `base`: the finding `id` on the line that holds `at`."""

    id: str
    name: str
    base: str
    old: str
    new: str
    at: str
    severity: str = "error"
    mended: str = ""
    """What the corrected text must hold; empty where no change is safe."""

    @property
    def firing(self) -> str:
        assert self.base.count(self.old) == 1, (self.old, self.base.count(self.old))
        return self.base.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.id}-{self.name}"


def _v1(identifier: str, name: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, name, cells.V1, old, new, at, **more)


def _v2(identifier: str, name: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, name, cells.V2, old, new, at, **more)


LARGE = Model.from_shape(layers=48, hidden=8192, heads=64, vocab=50_257)
SMALL = Model.from_shape(layers=12, hidden=768, heads=12, vocab=50_257)

CASES = [
    _v1("EST501", "unknown", '"microbatches": 4', '"microbatchs": 4', "microbatchs", mended='"microbatches": 4'),
    _v1("EST501", "type", '"fp16": True', '"fp16": 1', '"fp16": 1', mended='"fp16": True'),
    _v1(
        "EST501",
        "scientific",
        '"fp16": True,',
        '"fp16": True, "sdp_reduce_bucket_size": 5e8,',
        "5e8",
        mended='"sdp_reduce_bucket_size": int(5e8)',
    ),
    _v1("EST501", "range", '"microbatches": 4', '"microbatches": 0', '"microbatches": 0', mended='"microbatches": 1'),
    _v1("EST501", "choice", '"optimize": "speed"', '"optimize": "Speed"', "Speed", mended='"optimize": "speed"'),
    _v1(
        "EST501",
        "refused by the SDK",
        '"optimize": "speed"',
        '"optimize": "speed", "placement_strategy": "DPT"',
        "DPT",
        mended='"optimize": "speed",\n',
    ),
    _v2(
        "EST501",
        "of version 1",
        '"tensor_parallel_degree": 2',
        '"tensor_parallel_degree": 2, "microbatches": 4',
        "microbatches",
        mended='"tensor_parallel_degree": 2,\n',
    ),
    Case(
        "EST501",
        "in a trainer",
        cells.TRAINER,
        "tensor_parallel_degree=2",
        "tensor_paralel_degree=2",
        "tensor_paralel_degree",
        mended="tensor_parallel_degree=2",
    ),
    Case("EST501", "in a request", cells.REQUEST, '\\"ddp\\": true', '\\"dpp\\": true', "mp_parameters"),
    Case(
        "EST501",
        "of TensorFlow",
        cells.TENSORFLOW,
        '"microbatches": 4}',
        '"microbatches": 4, "tensor_parallel_degree": 2}',
        "tensor_parallel_degree",
        mended='"microbatches": 4}',
    ),
    Case(
        "EST502",
        "in a recipe",
        cells.RECIPE,
        "shard_degree: 64",
        "shard_degree: 60",
        "shard_degree: 60",
        mended="shard_degree: 64",
    ),
    _v1(
        "EST505",
        "active microbatches",
        '"active_microbatches": 2',
        '"active_microbatches": 6',
        "active_microbatches",
        mended='"active_microbatches": 4',
    ),
    _v1(
        "EST505",
        "tensor parallelism without ddp",
        '"ddp": True',
        '"ddp": False',
        "tensor_parallel_degree",
        mended='"ddp": True',
    ),
    _v1(
        "EST505",
        "prescaled for memory",
        '"optimize": "speed"',
        '"optimize": "memory"',
        "prescaled_batch",
        mended='"optimize": "speed"',
    ),
    _v1(
        "EST505",
        "both precisions",
        '"fp16": True,',
        '"fp16": True, "bf16": True,',
        '"bf16": True',
        mended='"fp16": True,\n',
    ),
    _v1("EST506", "python", 'py_version="py39"', 'py_version="py38"', "framework_version", mended='py_version="py39"'),
    _v2("EST506", "short version", '"2.4.1"', '"2.4"', "2.4", mended='framework_version="2.4.1"'),
    *(
        _v1(
            "EST511",
            name,
            "disable_profiler=True",
            f"disable_profiler=True,\n    {more}",
            "use_spot_instances" if "spot" in more else at,
        )
        for name, more, at in (
            ("spot without a waiting time", 'use_spot_instances=True, checkpoint_s3_uri="s3://b/c"', ""),
            (
                "warm pool of spot instances",
                'use_spot_instances=True, max_wait=9000, checkpoint_s3_uri="s3://b", keep_alive_period_in_seconds=60',
                "",
            ),
            ("longer than 28 days", "max_run=28 * 86400 + 1", "max_run"),
        )
    ),
    Case(
        "EST511",
        "file system without a network",
        cells.V1,
        "disable_profiler=True,\n)",
        'disable_profiler=True,\n)\nestimator.fit(FileSystemInput("fs-1", "FSxLustre", "/fsx/train"))',
        "FileSystemInput",
    ),
    _v1(
        "EST509",
        "length",
        '"fp16": True,',
        '"fp16": True, "partition_file": "' + "x" * 2600 + '",',
        '"parameters"',
        severity="warning",
    ),
]

WITH_MODEL = [("EST508", cells.V1, LARGE, SMALL), ("EST510", cells.V1, SMALL, LARGE)]
"""A check of memory, with a model for which it fires and one for which it does not."""
