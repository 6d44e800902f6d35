"""Random jobs, and the requests that they must send, worked out without the exporter.

The expectation knows the API, the launchers and the published learning rates. From the package it uses only the plan,
the container of the library version and the cost model.
"""

import json
import math
import random
import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from smp_advisor.cluster import Cluster
from smp_advisor.costs.effective_time import effective_time
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.export import script_cell
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.library import LIBRARIES
from smp_advisor.libraries.space import enumerate_plans
from smp_advisor.libraries.version import image, supported_instances
from smp_advisor.workload import Job, Model
from smp_advisor.workload.job import OVERHEADS
from tests.export.reading import typed

__all__ = ["RandomJob", "decoded", "differences", "draw", "expected", "sent"]

MODELS = {
    "gpt2": Model.from_config({"model_type": "gpt2", "n_embd": 1600, "n_head": 32, "n_layer": 48}),
    "llama": Model.from_config(
        {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    ),
    "neox": Model.from_config(
        {"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64}
    ),
    "bert": Model.from_config({"model_type": "bert"}),
}
NODES = (1, 2, 4, 16)
HOSTILE = (
    *("it's", '"', "\\", "a\nb", "{{ inputs }}", "{0}", "${HOME}", "%s", "# fmt: skip", "#: end", "日本 é", "\u2028"),
    "{x!r}",
)
"""Texts that would change a cell if they were not quoted."""
ACCOUNT = "123456789012"
BUCKET = f"sagemaker-us-west-2-{ACCOUNT}"
FSX = "fsx://fs-0123456789abcdef0/fsx"
HOUR, DAY = 3600, 86_400
METRICS = {
    *(f"train:{name}" for name in ("loss", "throughput", "tflops_per_gpu", "mfu")),
    *(f"train:peak_{kind}_gib" for kind in ("allocated", "reserved")),
    "validation:loss",
}
RDMA = "-x FI_EFA_USE_DEVICE_RDMA=1 -x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1"
GPT3 = (
    # Parameters, batch in tokens and learning rate of table 2.1.
    *((125e6, 0.5e6, 6e-4), (350e6, 0.5e6, 3e-4), (760e6, 0.5e6, 2.5e-4), (1.3e9, 1e6, 2e-4), (2.7e9, 1e6, 1.6e-4)),
    *((6.7e9, 2e6, 1.2e-4), (13e9, 2e6, 1e-4), (175e9, 3.2e6, 0.6e-4)),
)


@dataclass(frozen=True)
class RandomJob:
    model: Model
    cluster: Cluster
    job: Job
    plan: Any
    sdk: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def parts(self):
        return self.model, self.cluster, self.job, self.plan


@cache
def _space(library, model, instance, nodes, precision):
    job = Job(sequence_length=512, precision=precision)
    try:
        plans = enumerate_plans(MODELS[model], Cluster(instance, nodes), job, library=library)
    except AdvisorError:
        return None
    return plans if len(plans) else None


def draw(chance: random.Random) -> RandomJob:
    """A plan of a search with random options. Every text is hostile in some jobs."""
    while True:
        library = chance.choice(LIBRARIES)
        instance = chance.choice([option.name for option in supported_instances(library)])
        nodes, model = chance.choice(NODES), chance.choice(sorted(MODELS))
        precision = chance.choice(("fp16", "bf16", "fp32"))
        plans = _space(library, model, instance, nodes, precision)
        if plans is None or (precision == "bf16" and not Cluster(instance).instance.bf16):
            continue
        try:
            plan = plans.plan(chance.randrange(len(plans)))
        except AdvisorError:
            continue  # refused by the library
        tokens = chance.choice((None, None, 1e8, 1e10, 1e12))
        options = _options(chance, instance, library)
        if "data" in options and tokens is None:
            options["extra_hyperparameters"] = {**options.get("extra_hyperparameters", {}), "max_steps": 100}
        job = Job(sequence_length=512, precision=plan.precision, tokens=tokens)
        cluster = Cluster(instance, nodes)
        return RandomJob(MODELS[model], cluster, job, plan, chance.choice(("v2", "v3")), options)


def _text(chance, plain):
    return plain if chance.random() < 0.6 else f"{plain}{chance.choice(HOSTILE)}{chance.choice(HOSTILE)}"


def _options(chance, instance, library):
    options = {"job_name": chance.choice(("run", "a-b-3", "x" * 38))}

    def sometimes(name, value, share=0.3):
        if chance.random() < share:
            options[name] = value

    network = {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}
    train = chance.choice((f"s3://data/{_text(chance, 'tokens')}", f"{FSX}/{_text(chance, 'tokens')}"))
    sometimes("data", chance.choice((train, {"train": train, "validation": f"s3://data/{_text(chance, 'v')}"})), 0.7)
    sometimes("checkpoints", chance.choice((f"s3://runs/{_text(chance, 'c')}", f"{FSX}/{_text(chance, 'c')}", True)))
    if "fsx://" in str(options) or chance.random() < 0.2:
        options |= network
    if chance.random() < 0.25:
        options["spot"] = True
    else:
        sometimes("keep_alive_seconds", chance.randint(1, 21_600))
    sometimes("max_run_seconds", chance.randint(6, 28 * 24) * HOUR)
    sometimes("volume_gb", chance.randint(1, 16_384))
    sometimes("role", f"arn:aws:iam::{ACCOUNT}:role/SageMakerRole")
    sometimes("tags", {"team": "a b", "cost": "x@y/z"})
    sometimes("output_path", f"s3://models/{_text(chance, 'team')}")
    sometimes("output_kms_key", "alias/models")
    sometimes("input_mode", "FastFile")
    sometimes("environment", {"NCCL_DEBUG": _text(chance, "INFO"), "EMPTY": ""})
    if instance.startswith(("ml.p2.", "ml.p3.")):
        sometimes("volume_kms_key", "alias/disks")
    if library != "training-compiler":
        sometimes("image_uri", f"{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com/mine:1")
    if not options.get("spot"):
        sometimes("training_plan", f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:training-plan/mine", 0.15)
    extra = {"note": _text(chance, "hello"), "flag": True, "real": 0.5, "list": [1, "a"]}
    sometimes("extra_hyperparameters", extra, 0.5)
    return options


def expected(drawn: RandomJob, *, generated: bool) -> dict[str, Any]:
    """The facts of the request of a job, by the API's names where they are short."""
    _, cluster, _, plan = drawn.parts
    options, run = drawn.options, _run(drawn)
    container = image(plan.library, plan.version)
    uri = options.get("image_uri")
    facts = {
        "role": f"arn:aws:iam::{ACCOUNT}:role/SageMakerRole",
        "image": (uri,) if uri else (container.account, container.repository, container.framework_version),
        "instances": (cluster.instance.name, cluster.nodes),
        "volume": options.get("volume_gb", run["volume"]),
        "volume key": options.get("volume_kms_key"),
        "warm pool": options.get("keep_alive_seconds"),
        "training plan": options.get("training_plan"),
        "seconds": run["max_run"],
        "waiting": options.get("max_wait_seconds", min(2 * run["max_run"], 28 * DAY)) if options.get("spot") else None,
        "spot": bool(options.get("spot")),
        "checkpoints": run["checkpoints"],
        "output": options.get("output_path"),
        "output key": options.get("output_kms_key"),
        "channels": _channels(options),
        "environment": _efa(cluster, plan) | options.get("environment", {}),
        "tags": options.get("tags", {}),
        "network": (options.get("subnets"), options.get("security_group_ids")),
        "metrics": _printed(drawn.plan.library) if generated else set(),
    }
    script = plan.hyperparameters | {"sequence_length": drawn.job.sequence_length, "max_steps": run["steps"]}
    if generated:
        script |= {"learning_rate": _learning_rate(drawn), "warmup_steps": _warmup(run["steps"])}
    if run["saves"]:
        script["checkpoint_every"] = run["every"]
    if str(options.get("checkpoints")).startswith("fsx"):
        script["checkpoint_directory"] = "/opt/ml/input/data/checkpoints"
    facts["hyperparameters"] = script | options.get("extra_hyperparameters", {}) | _launched(drawn)
    facts["program"] = script_cell(*drawn.parts).split(None, 2)[1] if generated else "mine.py"
    return facts


def _efa(cluster, plan):
    """Variables of jobs on several nodes that torchrun starts, on instances that neither SDK knows to have EFA."""
    known = "g4dn.8x", "g4dn.12x", "g5.48x", "p3dn", "p4d", "p5.48x"
    starts = plan.library in ("fsdp", "ddp", "smp-v2") and cluster.nodes > 1 and cluster.instance.efa
    return {"FI_PROVIDER": "efa"} if starts and not any(name in cluster.instance.name for name in known) else {}


def _channels(options):
    data = options.get("data", {})
    places = {"train": data} if isinstance(data, str) else dict(data)
    mode = "FastFile" if options.get("input_mode") else "File"
    channels = {
        name: (place.replace(f"{FSX}/", "/fsx/"), "ro", "File") if place.startswith("fsx") else (place, mode)
        for name, place in places.items()
    }
    if str(options.get("checkpoints")).startswith("fsx"):
        channels["checkpoints"] = (options["checkpoints"].replace(f"{FSX}/", "/fsx/"), "rw", "File")
    return channels


def _printed(library):
    """Metrics in the lines of a generated script: the Trainer of Training Compiler reads loss and speed only."""
    return {"train:loss", "train:throughput"} if library == "training-compiler" else METRICS


def _run(drawn):
    """Steps, time limit, checkpoints and disk of the run."""
    model, cluster, job, plan = drawn.parts
    options, costs = drawn.options, estimate(model, cluster, job, plan)
    tokens = job.tokens
    steps = 100 if tokens is None else math.ceil(tokens / (costs.global_batch_size * job.sequence_length))
    place = options.get("checkpoints")
    storage = "fsx" if str(place).startswith("fsx") else "local"
    counted = replace(job, overheads=replace(job.overheads, parts=OVERHEADS, storage=storage))

    def effective(seconds):
        layout = layout_of_plan(plan, counted, cluster)
        return effective_time(model, cluster, counted, layout, step_seconds=seconds, steps=float(steps))

    middle, slow = costs.step_seconds, costs.step_seconds_range[1]
    longest, total = options.get("max_run_seconds", 28 * DAY), steps * slow / effective(slow).share
    interval = effective(middle).checkpoint_interval_seconds
    if options.get("spot"):
        interval = min(interval, 1800)
    chain = tokens is not None and total > longest
    if chain:
        interval = min(interval, (longest - effective(slow).startup_seconds) / 4)
        max_run = longest
    else:
        max_run = options.get("max_run_seconds") or min(HOUR * math.ceil(total / HOUR), 28 * DAY)
    saves = bool(place) or bool(options.get("spot")) or total > HOUR
    in_s3 = saves and storage == "local"
    name = options["job_name"]
    own = f"{options.get('output_path', f's3://{BUCKET}').rstrip('/')}/{name[:29] if chain else name}-ID/checkpoints"
    # Three checkpoints of 20 bytes per parameter over the nodes with different parts.
    layout = layout_of_plan(plan, job, cluster)
    parts = int(layout.tensor_parallel_degree) * int(layout.pipeline_parallel_degree)
    if int(layout.shard_level):
        parts *= int(layout.shard_degree) or cluster.gpus
    nodes = max(1, min(parts, cluster.gpus) // cluster.gpus_per_node)
    disk = (
        30
        if not cluster.instance.name.startswith(("ml.p2.", "ml.p3."))
        else 100 + (math.ceil(3 * 20 * model.parameter_count / nodes / 1e9) if in_s3 else 0)
    )
    return {
        "steps": steps,
        "max_run": max_run,
        "saves": saves,
        "every": max(1, min(round(interval / middle), steps)),
        "checkpoints": (place if isinstance(place, str) else own) if in_s3 else None,
        "volume": disk,
    }


def _learning_rate(drawn):
    model, batch = drawn.model, estimate(*drawn.parts).global_batch_size * drawn.job.sequence_length
    rows = ((110e6, 131_072, 1e-4),) if model.family == "bert" else GPT3
    below = max((row for row in rows if row[0] <= model.parameter_count), default=rows[0])
    above = min((row for row in rows if row[0] >= model.parameter_count), default=rows[-1])
    part = 0.0 if above[0] == below[0] else math.log(model.parameter_count / below[0]) / math.log(above[0] / below[0])
    of_rows, rate = (below[column] ** (1 - part) * above[column] ** part for column in (1, 2))
    return float(f"{rate * min(max(math.sqrt(batch / of_rows), 0.25), 2):.1e}")


def _warmup(steps):
    return min(max(round(steps / 100), min(20, steps // 5)), 2000)


def _launched(drawn):
    """Hyperparameters with which the container starts the script."""
    plan, instance = drawn.plan, drawn.cluster.instance
    if plan.library == "training-compiler":
        launched = {
            "sagemaker_training_compiler_enabled": True,
            "sagemaker_training_compiler_debug_mode": bool(plan.debug),
        }
        several = drawn.cluster.gpus > 1
        return launched | ({"sagemaker_pytorch_xla_multi_worker_enabled": True} if several else {})
    if plan.library in ("smp-v1", "smp-v1-tensorflow"):
        options = RDMA if instance.efa and instance.gpudirect_rdma else ""
        if instance.name == "ml.p3dn.24xlarge":
            options = "-x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1"
        return {
            "sagemaker_mpi_enabled": True,
            "sagemaker_mpi_num_of_processes_per_host": instance.gpus,
            **({"sagemaker_mpi_custom_mpi_options": options} if options else {}),
            "mp_parameters": plan.parameters,
        }
    launched = {"mp_parameters": plan.parameters} if plan.library == "smp-v2" else {}
    return launched | ({"sagemaker_torch_distributed_enabled": True} if drawn.sdk == "v2" else {})


_OF_THE_SDK = {
    *("sagemaker_program", "sagemaker_submit_directory", "sagemaker_region", "sagemaker_container_log_level"),
    *("sagemaker_job_name", "sagemaker_instance_type", "sagemaker_distributed_dataparallel_enabled", "model_dir"),
}


def sent(result: dict[str, Any]) -> dict[str, Any]:
    """The same facts of the first request that a cell sent."""
    request = result["requests"][0]
    resources, stopping = request["ResourceConfig"], request["StoppingCondition"]
    hyperparameters = {key: decoded(value) for key, value in request["HyperParameters"].items()}
    output, network = request["OutputDataConfig"], request.get("VpcConfig", {})
    place = output["S3OutputPath"]
    checkpoints = request.get("CheckpointConfig", {}).get("S3Uri")
    uri = request["AlgorithmSpecification"]["TrainingImage"]
    return {
        "role": request["RoleArn"],
        "image": _image(uri),
        "instances": (resources["InstanceType"], resources["InstanceCount"]),
        "volume": resources["VolumeSizeInGB"],
        "volume key": resources.get("VolumeKmsKeyId"),
        "warm pool": resources.get("KeepAlivePeriodInSeconds"),
        "training plan": resources.get("TrainingPlanArn"),
        "seconds": stopping["MaxRuntimeInSeconds"],
        "waiting": stopping.get("MaxWaitTimeInSeconds"),
        "spot": bool(request.get("EnableManagedSpotTraining")),
        "checkpoints": checkpoints and re.sub("-[0-9a-f]{8}/checkpoints$", "-ID/checkpoints", checkpoints),
        "output": None if place.startswith(f"s3://{BUCKET}") else place,
        "output key": output.get("KmsKeyId"),
        "channels": {
            channel["ChannelName"]: _place(channel)
            for channel in request.get("InputDataConfig", [])
            if channel["ChannelName"] not in ("code", "sm_drivers")
        },
        "environment": request.get("Environment", {}),
        "tags": {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])},
        "network": (network.get("Subnets"), network.get("SecurityGroupIds")),
        "metrics": {metric["Name"] for metric in request["AlgorithmSpecification"].get("MetricDefinitions", [])},
        # The first releases of version 3 send no empty ones.
        "hyperparameters": {
            key: value for key, value in hyperparameters.items() if key not in _OF_THE_SDK and value != ""
        },
        # What is started was uploaded.
        "program": result["program"] if result["program"] in result["files"] else sorted(result["files"]),
    }


def decoded(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


def _image(uri):
    if "/mine:" in uri:
        return (uri,)
    match = re.fullmatch(r"(\d{12})\.dkr\.ecr\.us-west-2\.amazonaws\.com/([\w-]+):([\d.]+)-.*", uri)
    return match.groups()


def _place(channel):
    source = channel["DataSource"].get("FileSystemDataSource")
    mode = channel.get("InputMode", "File")
    if source is not None:
        return source["DirectoryPath"], source["FileSystemAccessMode"], mode
    return channel["DataSource"]["S3DataSource"]["S3Uri"], mode


def differences(drawn, result, *, generated, ignored=frozenset()):
    """Facts of the request of a job's cell that are not the expected ones."""
    if result["error"] or not result["requests"]:
        return [result["error"] or "no request"]
    request, wanted = sent(result), expected(drawn, generated=generated)
    return [
        f"{fact}: {request[fact]!r} instead of {wanted[fact]!r}"
        for fact in wanted.keys() - ignored
        if typed(request[fact]) != typed(wanted[fact])
    ]
