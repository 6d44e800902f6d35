"""What every test runs under: no network, no account, no search that depends on chance in continuous integration."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine is slow at times, which is no failure; what CI finds must be found again on the next machine.
settings.register_profile("smp_advisor", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("smp_advisor")

# For this process and its children: the SDK would look for credentials at the metadata service, transformers at a hub.
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
