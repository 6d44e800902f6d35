"""What every test runs under: no network, no account, no chance.

Property tests try the same examples at every run, on every machine. Hypothesis derives them from the test and from the
constants in the modules of the advisor that are loaded: a room alone tries others than the whole suite, and so does the
next commit. `make explore` is what searches at random, with more examples. What it finds is mended with the failing
case as an `@example` or a test of its own, which every later run then tries. How many examples a test tries, the
profile says: a number in the test itself would be that of every profile.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis' own profile for continuous integration, for all: no chance, no limits of time, failures with their blob.
settings.load_profile("ci")
settings.register_profile(
    "explore",
    settings.get_profile("default"),
    max_examples=500,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a shared machine is slow at times, which is no failure
)

# For this process and its children: no account, profile or region of the developer's.
for name in [name for name in os.environ if name.startswith(("AWS_", "SAGEMAKER_"))]:
    del os.environ[name]
os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
# The SDK would look for credentials at the metadata service, transformers at a hub.
os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

LOOPBACK = {"", "127.0.0.1", "::1", "localhost", "0.0.0.0"}


def refuse_network(event: str, arguments: tuple) -> None:
    """Let this process reach only this machine: the advisor promises to work with no network."""
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in LOOPBACK:
        raise ConnectionRefusedError(f"a test reached for the network: {arguments[1]}")


sys.addaudithook(refuse_network)


@pytest.fixture(scope="session")
def root() -> Path:
    """The top folder of the repository."""
    return Path(__file__).parents[1]
