"""Companion cells of a training job: monitoring, permissions, quota and price."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.table import table_date
from smp_advisor.core.files import data_file
from smp_advisor.export.job_cell import chosen_sdk
from smp_advisor.export.options import JobOptions, base_job_name, bucket_and_prefix, require_sagemaker
from smp_advisor.export.template import Comment, comment_lines, render
from smp_advisor.libraries.version import image

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

_NETWORK = [
    *(f"ec2:{action}NetworkInterface{suffix}" for action in ("Create", "Delete") for suffix in ("", "Permission")),
    *(f"ec2:Describe{what}" for what in ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")),
]


def policy(plan: Plan, options: JobOptions, *, model_name: str, checks_network: bool) -> dict[str, Any]:
    """Statements for the data, output, container, logs and metrics of a job, and for its network and keys if used.

    `checks_network`: the SDK refuses a role without permissions for networks, as version 3 does for every job.
    """
    inputs = [place for place in options.channels.values() if isinstance(place, str)]
    # The SDK's default bucket, below the names of the jobs: sources, and models and checkpoints without a location. A
    # chain shortens the names for its identity of eight characters.
    longest = data_file("export", "launch")["limits"]["base_job_name_characters"] - 9
    default = f"s3://sagemaker-*/{base_job_name(options.job_name, model_name)[:longest]}"
    own = (options.output_path, options.checkpoint_place)
    outputs = [default, *(place for place in own if isinstance(place, str))]
    statements = [
        *([_statement("ReadData", ["s3:GetObject"], [*map(_objects, inputs)])] if inputs else []),
        _statement("WriteOutput", ["s3:GetObject", "s3:PutObject"], [*map(_objects, outputs)]),
        *_lists([*inputs, *outputs]),
        *_container(plan, options),
        _statement(
            "Logs",
            ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            "arn:aws:logs:*:*:log-group:/aws/sagemaker/TrainingJobs*",
        ),
        # IfExists: the SDK simulates the permission without a namespace. Real requests have one.
        _statement(
            "Metrics",
            ["cloudwatch:PutMetricData"],
            "*",
            {"StringEqualsIfExists": {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"}},
        ),
    ]
    if options.subnets or checks_network:
        statements.append(_statement("Network", _NETWORK, "*"))
    if options.uses_file_system:
        statements.append(_statement("FileSystem", ["fsx:DescribeFileSystems"], "*"))
    if (key := options.output_kms_key) is not None:
        statements.append(_key("OutputKey", key, ["kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey"]))
    if (key := options.volume_kms_key) is not None:
        actions = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext"]
        for_aws = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
        statements += [_key("VolumeKey", key, actions), _key("VolumeKeyGrant", key, ["kms:CreateGrant"], for_aws)]
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(
    name: str, actions: list[str], resource: str | list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": resource}
    return statement if condition is None else statement | {"Condition": condition}


def _objects(uri: str) -> str:
    """ARN of the objects that start with the prefix, as SageMaker reads an S3 URI."""
    return "arn:aws:s3:::{}/{}*".format(*bucket_and_prefix(uri))


def _lists(uris: Iterable[str]) -> list[dict[str, Any]]:
    """Return one statement per bucket: lists of the keys with the prefixes in use."""
    prefixes: dict[str, list[str]] = {}
    for uri in uris:
        bucket, prefix = bucket_and_prefix(uri)
        prefixes.setdefault(bucket, []).append(f"{prefix}*")
    conditions = {bucket: {"StringLike": {"s3:prefix": list(dict.fromkeys(used))}} for bucket, used in prefixes.items()}
    return [
        _statement(f"List{number}", ["s3:ListBucket"], f"arn:aws:s3:::{bucket}", condition)
        for number, (bucket, condition) in enumerate(conditions.items(), start=1)
    ]


_REGISTRY = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")


def _container(plan: Plan, options: JobOptions) -> list[dict[str, Any]]:
    container = image(plan.library, plan.version)
    repository = f"arn:aws:ecr:*:{container.account}:repository/{container.repository}"
    if options.image_uri is not None:
        if (match := _REGISTRY.match(options.image_uri)) is None:
            return []  # an image outside of ECR
        account, region, name = match.groups()
        repository = f"arn:aws:ecr:{region}:{account}:repository/{name}"
    actions = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    return [
        _statement("Container", actions, repository),
        _statement("ContainerLogin", ["ecr:GetAuthorizationToken"], "*"),
    ]


def _key(name: str, key: str, actions: list[str], condition: dict[str, Any] | None = None) -> dict[str, Any]:
    """Use of one key. An alias is a condition, because policies name keys by their id."""
    alias = key.rpartition(":")[2]
    if alias.startswith("alias/"):
        aliased = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": alias}}
        return _statement(name, actions, "*", (condition or {}) | aliased)
    return _statement(name, actions, key if key.startswith("arn:") else f"arn:aws:kms:*:*:key/{key}", condition)


def monitoring_cell(cluster: Cluster, *, region: str | None = None) -> str:
    """Cell that monitors a job: utilization of each host from CloudWatch, last log lines, links to the console.

    It reads ``job_name`` from the cell that started the job, and defines a data frame ``usage``. `region` is the AWS
    region of the job; None for that of the environment.
    """
    require_sagemaker(cluster)
    instance, region = cluster.instance, JobOptions(region=region).region
    return render("monitoring.py.in", region=region, instances=cluster.nodes, gpus=instance.gpus, vcpus=instance.vcpus)


def permissions_cell(cluster: Cluster, plan: Plan, *, model_name: str = "", sdk: str = "auto", **options: Any) -> str:
    """Cell with the minimum permissions of a job's execution role, and the managed policies that AWS recommends.

    The names of jobs and of their output derive from `model_name`. Version 3 of the SDK refuses a role without
    permissions for networks. The locations, keys and file systems of `JobOptions` are in the statements.
    """
    require_sagemaker(cluster)
    chosen = JobOptions.of(options)
    checks_network = chosen_sdk(sdk, image(plan.library, plan.version)) == "v3"
    return render(
        "permissions.py.in",
        policy=policy(plan, chosen, model_name=model_name, checks_network=checks_network),
        fsx=chosen.uses_file_system,
        checks_network=checks_network and not chosen.subnets,
        efa_network=chosen.subnets and cluster.instance.efa,
    )


def quota_cell(cluster: Cluster, **options: Any) -> str:
    """Return the cell that queries AWS for quota, price and the training plans on offer, with a time limit."""
    require_sagemaker(cluster)
    chosen = JobOptions.of(options)
    name = cluster.instance.name
    use = "training warm pool" if chosen.keep_alive_seconds is not None else "training job"
    values = {
        "instance": name,
        "instance_name": Comment(name),
        "instances": cluster.nodes,
        "quota": f"{name} for {'spot ' * chosen.spot}{use} usage",
        "usd": cluster.instance.usd_per_hour,
        "price_note": comment_lines(cluster.instance.price_note or "on demand"),
        "table_date": Comment(table_date()),
        "table_words": f"the advisor's table of {table_date()}",
        "region": chosen.region,
        "plans": name in data_file("export", "launch")["training_plans"]["instances"],
    }
    return render("quota.py.in", **values)
