"""Companion cells of a training job: monitoring, permissions, quota and price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.table import table_date
from smp_advisor.export import checks
from smp_advisor.export.literal import Comment, comment_lines
from smp_advisor.export.options import JobOptions
from smp_advisor.export.policy import policy
from smp_advisor.export.sdk import chosen_sdk
from smp_advisor.export.storage import FileSystem
from smp_advisor.export.template import render

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan

__all__ = ["monitoring_cell", "permissions_cell", "quota_cell"]


def monitoring_cell(cluster: Cluster, *, region: str | None = None) -> str:
    """Cell that monitors a job: utilization of each host from CloudWatch, last log lines, links to the console.

    It reads ``job_name`` from the cell that started the job, and defines a data frame ``usage``. `region` is the AWS
    region of the job; None for that of the environment.
    """
    checks.sagemaker_instance(cluster)
    gpus, vcpus = cluster.instance.gpus, cluster.instance.vcpus
    values = {
        "region": JobOptions(region=region).region,
        "instances": cluster.nodes,
        "gpus": gpus,
        "vcpus": vcpus,
        "gpus_comment": Comment(gpus),
        "gpus_percent": Comment(100 * gpus),
        "vcpus_comment": Comment(vcpus),
    }
    return render("monitoring.py.in", values=values, flags={"in_region": region is not None})


def permissions_cell(cluster: Cluster, plan: Plan, *, model_name: str = "", sdk: str = "auto", **options: Any) -> str:
    """Cell with the minimum permissions of a job's execution role, and the managed policies that AWS recommends.

    Parameters
    ----------
    cluster, plan
        The same as for the job cell.
    model_name
        Name of the model, from which the names of jobs and of their output derive.
    sdk
        Version of the SageMaker Python SDK: version 3 refuses a role without permissions for networks.
    options
        Options of the job, see `JobOptions`; their locations, keys and file systems are in the statements.
    """
    checks.sagemaker_instance(cluster)
    chosen = JobOptions.of(options)
    places = (*chosen.channels.values(), chosen.checkpoint_place)
    checks_network = chosen_sdk(sdk) == "v3"
    values = {
        "policy": policy(plan, chosen, model_name=model_name, checks_network=checks_network),
        "policy_name": "smp-advisor-training-job",
    }
    flags = {
        "fsx": any(isinstance(place, FileSystem) for place in places),
        "checks_network": checks_network and not chosen.subnets,
        "efa_network": bool(chosen.subnets) and cluster.instance.efa,
    }
    return render("permissions.py.in", values=values, flags=flags)


def quota_cell(cluster: Cluster, **options: Any) -> str:
    """Cell that queries AWS for the quota of the account and the current price, with a time limit."""
    checks.sagemaker_instance(cluster)
    chosen = JobOptions.of(options)
    name = cluster.instance.name
    use = "spot training job" if chosen.spot else "training job"
    if chosen.keep_alive_seconds is not None:
        use = "training warm pool"
    values = {
        "instance": name,
        "instance_name": Comment(name),
        "instances": Comment(cluster.nodes),
        "instances_value": cluster.nodes,
        "quota": f"{name} for {use} usage",
        "usd": cluster.instance.usd_per_hour,
        "price_note": comment_lines(cluster.instance.price_note or "on demand"),
        "table_date": Comment(table_date()),
        "table_words": f"the advisor's table of {table_date()}",
        "region": chosen.region,
    }
    return render("quota.py.in", values=values, flags={"in_region": chosen.region is not None})
