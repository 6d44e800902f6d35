"""The sandbox is tested from inside by whether it can be taken off, as root and as an ordinary user."""

import ctypes
import os
import socket
from pathlib import Path

import pytest

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox import confinement
from smp_advisor.sandbox.confinement import confined, release

SIZE = 32 * 2**20
HOST = "192.0.2.1".encode("idna").decode()  # its codec is imported here: the interpreter can be out of reach inside


def attempts(root: Path) -> dict[str, object]:
    """What code in a fork of the confined process can do; it is the place of the user's script."""
    out, into = os.pipe()
    if not os.fork():
        try:
            os.dup2(into, 1)
            release()
            done: dict[str, object] = {}
            status = Path("/proc/self/status").read_text().splitlines()
            done["rights"] = sorted(
                {line.split()[1] for line in status if line.startswith(("CapEff", "CapPrm", "CapBnd"))}
            )
            done["new privileges"] = next(line.split()[1] for line in status if line.startswith("NoNewPrivs"))
            libc = ctypes.CDLL(None)
            done["namespace"] = libc.unshare(0x10000000)
            done["remount"] = libc.mount(b"none", b"/usr", None, ctypes.c_ulong(0x1020), None)
            for path in ("/usr/written", "/proc/sys/vm/overcommit_memory", "/shown/written"):
                try:
                    Path(path).write_text("1")
                    done[path] = "written"
                except OSError:
                    done[path] = "refused"
            try:
                Path("/tmp/large").write_bytes(bytes(2 * SIZE))
                done["size"] = "unbounded"
            except OSError:
                done["size"] = "bounded"
            try:
                socket.create_connection((HOST, 80), timeout=5)
                done["network"] = "reached"
            except OSError:
                done["network"] = "refused"
            done["seen"] = sorted(path.name for path in Path("/shown").iterdir())
            os.write(1, repr(done).encode())
        finally:
            os._exit(0)
    os.close(into)
    os.wait()
    return eval(os.read(out, 1 << 16))


EXPECTED = {
    "rights": ["0000000000000000"], "new privileges": "1", "namespace": -1, "remount": -1, "/usr/written": "refused",
    "/proc/sys/vm/overcommit_memory": "refused", "/shown/written": "refused", "size": "bounded", "network": "refused",
    "seen": ["train.py"],
}  # fmt: skip


@pytest.mark.skipif(
    not confinement._succeeds(lambda: confinement._in_namespaces({}, 1 << 20, lambda: None)),
    reason="this system refuses namespaces",
)
@pytest.mark.parametrize("user", [0, 65534])
def test_nothing_of_the_sandbox_can_be_taken_off(user, tmp_path):
    if user != os.getuid() and os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("pass")
    for part in (tmp_path, *tmp_path.parents):
        if part.stat().st_uid == os.getuid() and part.is_relative_to("/tmp") and part != Path("/tmp"):
            part.chmod(0o755)
    out, into = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            if user:  # the interpreter of these tests can be in a folder of root
                confinement._folders = lambda: ("/usr", "/bin", "/lib", "/lib64")
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            ctypes.CDLL(None).prctl(4, 1)  # readable again, as after a login
            os.chdir("/")
            done = confined(attempts, shown={"/shown": folder}, size_bytes=SIZE)
            os.write(into, repr((done.result, done.reachable)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(into)
    assert os.waitpid(child, 0)[1] == 0
    done, reachable = eval(os.read(out, 1 << 16))
    assert done == EXPECTED
    assert reachable == ()


def test_without_namespaces_the_work_is_refused_or_states_what_it_reached(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError

    monkeypatch.setattr(confinement, "_in_namespaces", refuse)
    with pytest.raises(ProfileError, match="allow_unconfined=True"):
        confined(lambda _: 1, shown={}, size_bytes=SIZE)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # which is cleared
    (tmp_path / "a").write_text("x")
    options = {"shown": {"/shown": tmp_path}, "size_bytes": SIZE, "allow_unconfined": True}
    done = confined(lambda root: (root / "shown" / "a").read_text(), **options)
    assert done.result == "x"
    assert done.reachable
