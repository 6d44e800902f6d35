"""Child process: runs notebook cells as they are under a mock of AWS and writes down every request they send.

usage: cells.py

Each line of standard input names two files, separated by a tab: notebooks to run, and where their results go. The
answer is the same line.
A notebook is a list of cells; each runs in a directory of its own, with the credentials of a SageMaker execution role
that may do everything, or, where its name starts with "as a user", of a user, or, where it starts with "least
privilege", of a role without permissions other than those that a cell attaches.
Nothing leaves the machine: an audit hook refuses, and writes down, every connection to another host.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import json
import os
import sys
import tarfile
import tempfile
import threading
import traceback
from pathlib import Path

REGION = "us-west-2"
LOOPBACK = ("", "127.0.0.1", "::1", "localhost", "None")

os.environ |= {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}
os.environ.pop("AWS_CA_BUNDLE", None)

refused: list[str] = []


def refuse_network(event, arguments):
    if event == "socket.getaddrinfo":
        host = str(arguments[0])
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if host not in LOOPBACK:
        refused.append(host)
        raise ConnectionRefusedError(f"a cell reached for {host}")


sys.addaudithook(refuse_network)

import boto3  # noqa: E402
import botocore.client  # noqa: E402
import botocore.loaders  # noqa: E402
import botocore.session  # noqa: E402
from moto import mock_aws  # noqa: E402

# Every session and every endpoint of the SDK would read the services' models again, which is half of the time.
_loader = botocore.loaders.create_loader()
botocore.session.create_loader = botocore.loaders.create_loader = lambda *_: _loader

calls: list[tuple[str, dict]] = []
_make_api_call = botocore.client.BaseClient._make_api_call


def recorded_call(client, operation, parameters):
    calls.append((operation, parameters))
    if operation == "SimulatePrincipalPolicy":
        # moto cannot simulate policies. Newer releases of version 3 ask for it in ModelTrainer's constructor.
        return simulation(client, parameters)
    return _make_api_call(client, operation, parameters)


botocore.client.BaseClient._make_api_call = recorded_call

TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}},
    ],
}


EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def simulation(iam, parameters):
    """What IAM answers about the policies of a role, without values of condition keys."""
    role = parameters["PolicySourceArn"].rpartition("/")[2]
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    documents = [iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names]
    results = []
    for action in parameters["ActionNames"]:
        for resource in parameters.get("ResourceArns", ["*"]):
            decision = "allowed" if allows(documents, action, resource) else "implicitDeny"
            results.append({"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": decision})
    return {"EvaluationResults": results, "IsTruncated": False}


def allows(documents, action, resource, **context):
    """Whether a statement allows an action on a resource: names with wildcards, and conditions on strings."""
    return any(
        any(fnmatch.fnmatchcase(action, pattern) for pattern in listed(statement["Action"]))
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in listed(statement["Resource"]))
        and all(
            (key not in context and test.endswith("IfExists"))
            or any(fnmatch.fnmatchcase(context.get(key, "\0"), value) for value in listed(values))
            for test, tested in statement.get("Condition", {}).items()
            for key, values in tested.items()
        )
        for document in documents
        for statement in document["Statement"]
    )


def listed(value):
    return [value] if isinstance(value, str) else value


def assume_execution_role(policy):
    """Be a role: the SDK finds its execution role in the caller's identity, and moto's own caller is a user."""
    boto3.setup_default_session()
    role = boto3.client("iam").create_role(RoleName="SageMakerRole", AssumeRolePolicyDocument=json.dumps(TRUST))
    if policy is not None:
        boto3.client("iam").put_role_policy(
            RoleName="SageMakerRole", PolicyName="given", PolicyDocument=json.dumps(policy)
        )
    credentials = boto3.client("sts").assume_role(RoleArn=role["Role"]["Arn"], RoleSessionName="notebook")
    os.environ |= {
        "AWS_ACCESS_KEY_ID": credentials["Credentials"]["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": credentials["Credentials"]["SecretAccessKey"],
        "AWS_SESSION_TOKEN": credentials["Credentials"]["SessionToken"],
    }
    boto3.setup_default_session()


def run_cell(cell, namespace):
    if cell.startswith("%%writefile "):
        first, body = cell.split("\n", 1)
        Path(first.removeprefix("%%writefile ").strip()).write_text(body)
    else:
        exec(compile(cell, "<cell>", "exec"), namespace)


def uploaded(request):
    """Files that a job runs, by name: of its source archive, or of the channel ``code`` (version 3 of the SDK)."""
    if code := in_channel(request, "code"):
        return {name: content.decode() for name, content in code.items()}
    place = request["HyperParameters"]["sagemaker_submit_directory"]
    bucket, key = split(json.loads(place) if place.startswith('"') else place)
    archive = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {
            member.name.removeprefix("./"): files.extractfile(member).read().decode()
            for member in files
            if member.isfile()
        }


def in_channel(request, name):
    """Contents of the files that the SDK uploaded for a channel of its own, by name; empty without that channel."""
    s3, contents = boto3.client("s3"), {}
    for channel in request.get("InputDataConfig", []):
        if channel["ChannelName"] == name:
            bucket, prefix = split(channel["DataSource"]["S3DataSource"]["S3Uri"])
            for entry in s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]:
                body = s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"]
                contents[entry["Key"].removeprefix(f"{prefix}/")] = body.read()
    return contents


def started(request):
    """The file that the job starts: by a hyperparameter, or by the description beside the drivers of version 3."""
    if (program := request["HyperParameters"].get("sagemaker_program")) is not None:
        return json.loads(program) if program.startswith('"') else program
    return json.loads(in_channel(request, "sm_drivers")["sourcecode.json"])["entry_script"]


def split(uri):
    bucket, key = uri.removeprefix("s3://").split("/", 1)
    return bucket, key.rstrip("/")


def run(name, cells):
    """What a notebook sent, uploaded and printed, and the error that ended it."""
    refused.clear()
    printed, error = io.StringIO(), None
    before = os.environ.copy()
    with mock_aws(), tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        if not name.startswith("as a user"):
            assume_execution_role(None if name.startswith("least privilege") else EVERYTHING)
        calls.clear()
        with contextlib.redirect_stdout(printed):
            try:
                namespace = {"__name__": "__main__"}
                for cell in cells:
                    run_cell(cell, namespace)
            except Exception:  # noqa: BLE001
                error = traceback.format_exc()
        boto3.setup_default_session()
        sent = list(calls)
        # Its telemetry, which the SDK sends from threads, would reach for AWS itself once the mock has ended.
        for thread in threading.enumerate():
            if thread.name == "sagemaker-telemetry":
                thread.join()
        requests = [parameters for operation, parameters in sent if operation == "CreateTrainingJob"]
        files, program = {}, None
        try:
            if requests:
                files, program = uploaded(requests[0]), started(requests[0])
        except (KeyError, tarfile.TarError) as reason:
            files = {"": repr(reason)}
    os.environ.clear()
    os.environ |= before
    return {
        "requests": requests,
        "operations": [operation for operation, _ in sent],
        "files": files,
        "program": program,
        "printed": printed.getvalue(),
        "error": error,
        "refused": list(refused),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        notebooks, results = map(Path, line.rstrip("\n").split("\t"))
        ran = {name: run(name, cells) for name, cells in json.loads(notebooks.read_text()).items()}
        results.write_text(json.dumps(ran, default=str))
        print(line, end="", flush=True)
    # Threads that the SDK leaves behind would be waited for.
    os._exit(0)
