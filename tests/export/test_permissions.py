"""The permissions cell: the job's role may do what the job needs, and nothing else."""

import json
from fnmatch import fnmatchcase

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import estimator_cell, permissions_cell, script_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job
from tests.export.examples import TASKS
from tests.moto_harness.notebooks import ENVIRONMENTS, run_notebooks

MODEL, PLAN = TASKS["llama"], Plan(library="ddp", version="2.5.1", precision="fp16", batch_size=4)
CLUSTER = Cluster("ml.p3.16xlarge", 2)
KEY = "arn:aws:kms:us-west-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
DATA = {"train": "s3://data/tokens/v1", "validation": "s3://held-out"}
OPTIONS = {
    "plain": {"data": DATA},
    "places": {
        "data": DATA,
        "checkpoints": "s3://runs/checkpoints",
        "output_path": "s3://models/team",
        "output_kms_key": "alias/models",
        "volume_kms_key": KEY,
        "image_uri": "111122223333.dkr.ecr.us-west-2.amazonaws.com/team/image:1",
    },
}
ATTACHED = "role_name = 'SageMakerRole'"


def statements(sdk="v2", **options):
    cell = permissions_cell(CLUSTER, PLAN, model_name=MODEL.name, sdk=sdk, **options)
    printed = {}
    exec(cell.replace("print(json.dumps(policy, indent=2))", "printed = policy"), printed)
    return printed["printed"]["Statement"]


def of_action(found, action):
    """Resources and conditions with an action."""
    return [
        (resource, statement.get("Condition"))
        for statement in found
        if action in statement["Action"]
        for resource in ([statement["Resource"]] if isinstance(statement["Resource"], str) else statement["Resource"])
    ]


def test_inputs_are_read_and_not_written_and_lists_are_limited_to_prefixes():
    found = statements(data=DATA)
    readable, writable = (
        {resource for resource, _ in of_action(found, action)} for action in ("s3:GetObject", "s3:PutObject")
    )
    (place,) = writable
    assert place.startswith("arn:aws:s3:::sagemaker-*/smp-Llama-")
    assert readable - writable == {"arn:aws:s3:::data/tokens/v1*", "arn:aws:s3:::held-out/*"}
    listed = dict(of_action(found, "s3:ListBucket"))
    assert listed["arn:aws:s3:::data"] == {"StringLike": {"s3:prefix": ["tokens/v1*"]}}
    assert listed["arn:aws:s3:::held-out"] == {"StringLike": {"s3:prefix": ["*"]}}
    assert set(listed) == {"arn:aws:s3:::data", "arn:aws:s3:::held-out", "arn:aws:s3:::sagemaker-*"}


PLACES, NETWORK = OPTIONS["places"], {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
NAMESPACE = {"StringEqualsIfExists": {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"}}


@pytest.mark.parametrize(
    ("action", "sdk", "options", "expected"),
    [
        ("cloudwatch:PutMetricData", "v2", {}, [("*", NAMESPACE)]),
        (
            "kms:GenerateDataKey",
            "v2",
            PLACES,
            [("*", {"ForAnyValue:StringEquals": {"kms:ResourceAliases": "alias/models"}})],
        ),
        ("kms:CreateGrant", "v2", PLACES, [(KEY, {"Bool": {"kms:GrantIsForAWSResource": "true"}})]),
        ("kms:CreateGrant", "v2", {}, []),
        ("kms:GenerateDataKey", "v2", {}, []),
        ("ec2:CreateNetworkInterface", "v2", {}, []),
        ("ec2:CreateNetworkInterface", "v3", {}, [("*", None)]),
        ("ec2:CreateNetworkInterface", "v2", NETWORK, [("*", None)]),
        (
            "ecr:BatchGetImage",
            "v2",
            PLACES,
            [("arn:aws:ecr:us-west-2:111122223333:repository/team/image", None)],
        ),
        ("ecr:BatchGetImage", "v2", {"image_uri": "public.example/mine:1"}, []),
    ],
)
def test_keys_networks_and_images_are_usable_only_when_used(action, sdk, options, expected):
    assert of_action(statements(sdk, **options), action) == expected


def test_text_of_the_user_stays_text():
    found = statements(data='s3://bucket/it\'s "x" {{ policy }}\n')
    assert ('arn:aws:s3:::bucket/it\'s "x" {{ policy }}\n*', None) in of_action(found, "s3:GetObject")


def notebooks(environment):
    sdk, parts = environment[:2], (MODEL, CLUSTER, Job(sequence_length=32, precision="fp16"), PLAN)
    bucket = "import boto3; boto3.client('s3', region_name='us-east-1').create_bucket(Bucket='models')"
    result = {}
    for name, options in OPTIONS.items():
        attach = permissions_cell(CLUSTER, PLAN, model_name=MODEL.name, sdk=sdk, **options)
        attach = attach.replace("role_name = None", ATTACHED)
        job = [script_cell(*parts), estimator_cell(*parts, sdk=sdk, **options)]
        result[f"least privilege: {name}"] = [bucket, attach, *job]
        result[f"least privilege: {name}, not attached"] = [bucket, *job]
    return result


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def ran(request):
    return request.param, run_notebooks(notebooks(request.param), request.param)


@pytest.mark.moto
@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_the_role_passes_the_validation_of_the_sdk(ran, name):
    """Newer releases of version 3 simulate the policy of the role. The others send the request."""
    environment, results = ran
    result = results[f"least privilege: {name}"]
    assert result["error"] is None, result["error"]
    (request,) = result["requests"]
    validates = environment == "v3-newest"
    assert ("SimulatePrincipalPolicy" in result["operations"]) == validates
    without = results[f"least privilege: {name}, not attached"]
    assert bool(without["requests"]) != validates
    assert not validates or "RoleValidationError" in without["error"]
    _covers(request, name)


def _covers(request, name):
    """The policy allows what SageMaker does with the places of the request."""
    sdk = "v2" if "sagemaker_program" in request["HyperParameters"] else "v3"
    found = statements(sdk, **OPTIONS[name])
    read = [channel["DataSource"]["S3DataSource"]["S3Uri"] for channel in request["InputDataConfig"]]
    source = request["HyperParameters"].get("sagemaker_submit_directory")
    read += [json.loads(source)] if source else []
    written = [f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output"]
    written += [place["S3Uri"] for place in [request.get("CheckpointConfig")] if place]
    for action, uris in (("s3:GetObject", read), ("s3:PutObject", written)):
        for uri in uris:
            resource = f"arn:aws:s3:::{uri.removeprefix('s3://')}/part"
            patterns = [pattern for pattern, _ in of_action(found, action)]
            assert any(fnmatchcase(resource, pattern) for pattern in patterns), (action, uri)
