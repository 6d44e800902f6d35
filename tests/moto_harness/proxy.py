"""A mock AWS account that a notebook server, kernel or browser test reaches through environment variables alone.

    with mock_account() as account:
        subprocess.run(["jupyter", "lab", ...], env=os.environ | account.environment)
        assert account.jobs()[0]["ResourceConfig"]["InstanceCount"] == 16

Nothing is patched in the processes that use it: HTTPS goes through a proxy on this machine that answers for AWS.
"""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["Account", "mock_account"]

REGION = "us-west-2"
STARTING_SECONDS = 600

TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}},
    ],
}


@dataclass(frozen=True)
class Account:
    """A mock account: variables for the processes that use it, and what it holds."""

    environment: dict[str, str]
    """Credentials of a SageMaker execution role, region, proxy and its certificate."""
    proxy: str
    certificate: str

    def client(self, service: str, region: str = REGION) -> Any:
        """A boto3 client of this account, for the test itself."""
        import boto3
        from botocore.config import Config

        session = boto3.Session(
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=self.environment.get("AWS_SESSION_TOKEN"),
            region_name=region,
        )
        config = Config(proxies={"http": self.proxy, "https": self.proxy}, retries={"max_attempts": 1})
        return session.client(service, config=config, verify=self.certificate)

    def jobs(self, region: str = REGION) -> list[dict[str, Any]]:
        """Training jobs of the account as `describe_training_job` shows them, oldest first."""
        sagemaker = self.client("sagemaker", region)
        names = [job["TrainingJobName"] for job in sagemaker.list_training_jobs()["TrainingJobSummaries"]]
        found = [sagemaker.describe_training_job(TrainingJobName=name) for name in names]
        return sorted(found, key=lambda job: job["CreationTime"])


@contextlib.contextmanager
def mock_account() -> Iterator[Account]:
    """Start the proxy and be a SageMaker execution role in its account."""
    from tests.ports import free_port

    package = Path(str(find_spec("moto").origin)).parent  # type: ignore[union-attr]
    certificate = str(package / "moto_proxy" / "ca.crt")
    port = free_port()
    command = [sys.executable, __file__, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    nobody = tempfile.TemporaryDirectory()
    try:
        _wait_for(port, process)
        proxy = f"http://127.0.0.1:{port}"
        environment = {
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
            "NO_PROXY": "127.0.0.1,localhost",
            # requests and boto3 trust the proxy's certificate, nothing else does.
            "AWS_CA_BUNDLE": certificate,
            "REQUESTS_CA_BUNDLE": certificate,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
            # The SDK's defaults of whoever runs the tests, or of their machine, are not the account's.
            "XDG_CONFIG_HOME": nobody.name,
            "XDG_CONFIG_DIRS": nobody.name,
        }
        account = Account(environment, proxy, certificate)
        role = account.client("iam").create_role(RoleName="SageMakerRole", AssumeRolePolicyDocument=json.dumps(TRUST))[
            "Role"
        ]["Arn"]
        # The SDK takes the caller's role for the execution role; moto's first caller is a user.
        assumed = account.client("sts").assume_role(RoleArn=role, RoleSessionName="notebook")["Credentials"]
        environment |= {
            "AWS_ACCESS_KEY_ID": assumed["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": assumed["SecretAccessKey"],
            "AWS_SESSION_TOKEN": assumed["SessionToken"],
        }
        yield Account(environment, proxy, certificate)
    finally:
        process.kill()
        process.wait()
        nobody.cleanup()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"moto_proxy ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
            return
        time.sleep(0.2)
    raise TimeoutError(f"moto_proxy did not listen within {STARTING_SECONDS} s")


def _serve() -> None:
    """moto's proxy, with what it lacks: training jobs keep their environment, and a role may do everything."""
    from moto.core.responses import ActionResult
    from moto.iam.responses import IamResponse
    from moto.proxy import main
    from moto.sagemaker.responses import SageMakerResponse

    create = SageMakerResponse.create_training_job

    def keeping(service: Any) -> Any:
        answer, (name, environment) = create(service), map(service._get_param, ("TrainingJobName", "Environment"))
        service.sagemaker_backend.training_jobs[name].environment = environment
        return answer

    def simulated(service: Any) -> Any:
        names = service._get_param("ActionNames", [])
        results = [{"EvalActionName": name, "EvalDecision": "allowed", "EvalResourceName": "*"} for name in names]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})

    SageMakerResponse.create_training_job = keeping
    IamResponse.simulate_principal_policy = simulated
    main()


if __name__ == "__main__":
    _serve()
