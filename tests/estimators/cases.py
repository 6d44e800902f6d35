"""One change that each check must notice, made to a configuration in which it must find nothing."""

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
    model: Model | None = None

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
ODD_HEADS = Model.from_shape(layers=48, hidden=1600, heads=25, vocab=50_257)

THREE_NODES = cells.V2.replace("instance_count=2", "instance_count=3").replace('degree": 8', 'degree": 4')

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
    Case(
        "EST501",
        "in a request",
        cells.REQUEST,
        '\\"ddp\\": true',
        '\\"dpp\\": true',
        "mp_parameters",
        mended='\\"ddp\\": true',
    ),
    Case(
        "EST501",
        "of TensorFlow",
        cells.TENSORFLOW,
        '"microbatches": 4}',
        '"microbatches": 4, "tensor_parallel_degree": 2}',
        "tensor_parallel_degree",
        mended='"microbatches": 4}',
    ),
    _v1(
        "EST502",
        "degrees",
        '"tensor_parallel_degree": 4',
        '"tensor_parallel_degree": 3',
        '"tensor_parallel_degree": 3',
        mended='"tensor_parallel_degree": 4',
    ),
    _v1(
        "EST502",
        "more processes than GPUs",
        'instance_type="ml.p4d.24xlarge"',
        'instance_type="ml.g4dn.12xlarge"',
        "processes_per_host",
        mended='"processes_per_host": 4',
    ),
    _v1("EST502", "idle GPUs on nodes", 'host": 8', 'host": 4', "processes_per_host", mended='"processes_per_host": 8'),
    Case(
        "EST502",
        "idle GPUs on one node",
        cells.TENSORFLOW,
        'host": 8',
        'host": 4',
        "processes_per_host",
        severity="warning",
        mended='"processes_per_host": 8',
    ),
    _v2("EST502", "shards", 'degree": 8', 'degree": 6', "hybrid_shard_degree", mended='"hybrid_shard_degree": 8'),
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
        "EST503",
        "no mpi",
        '        "mpi": {"enabled": True, "processes_per_host": 8},  # one a GPU\n',
        "",
        "smdistributed",
        mended='"mpi": {"enabled": True, "processes_per_host": 8}',
    ),
    _v1(
        "EST503",
        "torchrun in version 1",
        '        "mpi": {',
        '        "torch_distributed": {"enabled": True},\n        "mpi": {',
        "torch_distributed",
        mended='modelparallel": smp_options},\n        "mpi"',
    ),
    _v1(
        "EST503",
        "enabled as text",
        'smp_options = {\n    "enabled": True',
        'smp_options = {\n    "enabled": "True"',
        '"enabled": "True"',
        mended='smp_options = {\n    "enabled": True',
    ),
    _v1(
        "EST503",
        "options in place of the strategy",
        '"smdistributed": {"modelparallel": smp_options}',
        '"smdistributed": smp_options',
        '"smdistributed": smp_options',
    ),
    _v2(
        "EST503",
        "no torchrun",
        '        "torch_distributed": {"enabled": True},\n',
        "",
        "smdistributed",
        mended='"torch_distributed": {"enabled": True}',
    ),
    _v2(
        "EST503",
        "mpi in version 2",
        '        "torch_distributed": {"enabled": True},\n',
        '        "torch_distributed": {"enabled": True},\n        "mpi": {"enabled": True, "processes_per_host": 8},\n',
        '"mpi"',
        mended='distribution={\n        "torch_distributed": {"enabled": True},\n        "smdistributed"',
    ),
    Case(
        "EST503",
        "contract without mpi",
        cells.CONTRACT,
        '        "sagemaker_mpi_enabled": True,\n',
        "",
        '"mp_parameters"',
        mended='"sagemaker_mpi_enabled": True',
    ),
    Case(
        "EST503",
        "request without mpi",
        cells.REQUEST,
        '    "sagemaker_mpi_enabled": "true",\n',
        "",
        "mp_parameters",
        mended='"sagemaker_mpi_enabled": "true"',
    ),
    Case(
        "EST503",
        "torchrun without a script",
        cells.TRAINER,
        '    source_code=SourceCode(source_dir="src", entry_script="train.py"),\n',
        "",
        "distributed=Torchrun(",
    ),
    _v2(
        "EST504",
        "larger than a node",
        '"hybrid_shard_degree": 8,\n                    "tensor_parallel_degree": 2',
        '"hybrid_shard_degree": 1,\n                    "tensor_parallel_degree": 16',
        "tensor_parallel_degree",
        severity="warning",
    ),
    Case(
        "EST504",
        "no power of two",
        THREE_NODES,
        '"tensor_parallel_degree": 2',
        '"tensor_parallel_degree": 6',
        "tensor_parallel_degree",
        severity="warning",
    ),
    _v1(
        "EST504",
        "does not divide the heads",
        '"fp16": True,',
        '"fp16": True, ',
        "tensor_parallel_degree",
        model=ODD_HEADS,
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
    _v1(
        "EST505",
        "default_partition alone",
        '"fp16": True,',
        '"fp16": True, "auto_partition": False, "default_partition": 0,',
        "default_partition",
        mended='"partitions": 2',
    ),
    _v1(
        "EST505",
        "both strategies",
        '{"modelparallel": smp_options}',
        '{"modelparallel": smp_options, "dataparallel": {"enabled": True}}',
        "dataparallel",
        mended='{"modelparallel": smp_options}',
    ),
    Case(
        "EST505",
        "replicas without ddp",
        cells.CONTRACT,
        '"ddp": True',
        '"ddp": False',
        "mp_parameters",
        mended='"ddp": True',
    ),
    Case(
        "EST505",
        "compiler with smdistributed",
        cells.COMPILER,
        '"pytorchxla": {"enabled": True}',
        '"smdistributed": {"dataparallel": {"enabled": True}}',
        "dataparallel",
    ),
    Case(
        "EST505",
        "xla without the compiler",
        cells.COMPILER,
        "    compiler_config=TrainingCompilerConfig(),\n",
        "",
        "pytorchxla",
        mended="distribution={}",
    ),
    _v1("EST506", "python", 'py_version="py39"', 'py_version="py38"', "framework_version", mended='py_version="py39"'),
    _v2("EST506", "no python", '    py_version="py311",\n', "", "framework_version", mended='py_version="py311"'),
    _v2("EST506", "short version", '"2.4.1"', '"2.4"', "2.4", mended='framework_version="2.4.1"'),
    _v1(
        "EST506",
        "instance",
        'instance_type="ml.p4d.24xlarge"',
        'instance_type="ml.p5.48xlarge"',
        "instance_type",
        mended='instance_type="ml.p4d',
    ),
    Case(
        "EST506",
        "instance of the compiler",
        cells.COMPILER,
        "ml.p3dn.24xlarge",
        "ml.p5.48xlarge",
        "instance_type",
    ),
    _v1(
        "EST507",
        "debugger",
        "    debugger_hook_config=False,\n",
        "",
        "disable_profiler",
        severity="warning",
        mended="debugger_hook_config=False",
    ),
    _v1(
        "EST507",
        "profiler",
        "disable_profiler=True",
        "disable_profiler=False",
        "disable_profiler",
        severity="warning",
        mended="disable_profiler=True",
    ),
    Case(
        "EST507",
        "request",
        cells.REQUEST,
        '"ProfilerConfig"',
        '"DebugHookConfig": {"S3OutputPath": "s3://b"},\n  "ProfilerConfig"',
        "DebugHookConfig",
        severity="warning",
        mended='},\n  "ProfilerConfig"',
    ),
    *(
        _v1(
            "EST511",
            name,
            "disable_profiler=True",
            f"disable_profiler=True,\n    {more}",
            "use_spot_instances" if "spot" in more else at,
            severity="warning" if name == "spot without checkpoints" else "error",
        )
        for name, more, at in (
            ("spot without checkpoints", "use_spot_instances=True, max_wait=86400, max_run=3600", ""),
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
    Case(
        "EST512",
        "library's model",
        cells.ADAPTER_RECIPE,
        "use_smp_model: False",
        "use_smp_model: True",
        "use_smp_model",
        mended="use_smp_model: false",
    ),
    Case(
        "EST512",
        "degree",
        cells.ADAPTER_RECIPE,
        "tensor_model_parallel_degree: 1",
        "tensor_model_parallel_degree: 2",
        "tensor_model_parallel_degree",
        mended="tensor_model_parallel_degree: 1",
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

WITH_MODEL = [
    ("EST508", cells.V1, LARGE, SMALL),
    ("EST510", cells.V1, SMALL, LARGE),
]
"""A check of memory, with a model for which it fires and one for which it does not."""
