"""Every Python process with this folder on its path reaches only this machine: notebooks need no network."""

import sys

LOOPBACK = {"", "127.0.0.1", "::1", "localhost", "0.0.0.0"}


def refuse_network(event: str, arguments: tuple) -> None:
    """Refuse a connection to another machine, and the search for its address."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo" and arguments[0] is not None:
        host = str(arguments[0])
    else:
        return
    if host not in LOOPBACK:
        raise ConnectionRefusedError(f"a notebook reached for the network: {host}")


sys.addaudithook(refuse_network)

# transformers imports it where it is installed, for a quarter of the time in which a small training starts.
sys.modules["peft"] = None  # type: ignore[assignment]
