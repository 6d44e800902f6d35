"""Ports for the servers that tests start."""

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """A port of this machine that nothing else is given before the server is up.

    A connection closed from the port's side leaves it waiting for a minute: it then goes to who asks for its number, as
    a server does, and to nobody who asks for any.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        address = listening.getsockname()
        with socket.create_connection(address):
            listening.accept()[0].close()
        return int(address[1])
