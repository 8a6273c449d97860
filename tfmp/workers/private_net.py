"""A network namespace with only ``lo`` in it, so that nobody outside can reach the workers' ports.

TensorFlow's server listens on every interface without authentication. Inside such a namespace only the workers of this
machine are on them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from tfmp.workers.linux import checked_call

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = "16sh14x"

_REASONS = {
    errno.EPERM: "the system does not permit it (usual in a container without extra capabilities)",
    errno.EACCES: "the system does not permit it (usual in a container without extra capabilities)",
    errno.ENOSPC: "the limit of namespaces is reached (/proc/sys/user/max_net_namespaces, max_user_namespaces)",
    errno.EUSERS: "the limit of nested user namespaces is reached",
    errno.EINVAL: "the kernel was built without network or user namespaces, or this process has several threads",
    errno.ENOSYS: "the kernel has no namespaces",
}


def enter() -> None:
    """Move this process into a new network namespace and bring ``lo`` up.

    Must be called while single-threaded. An ordinary user gets a user namespace too, under the same user and group id.
    A failure may leave the process half moved, without any network: see :func:`refusal`.

    Raises:
        OSError: Refused.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        checked_call("unshare", _CLONE_NEWNET)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        checked_call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        # The kernel takes a gid map from an ordinary user only after setgroups is given up (user_namespaces(7)).
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.unpack(_IFREQ, fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack(_IFREQ, b"lo", 0)))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", flags | _IFF_UP))
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.settimeout(2)
        client.connect(server.getsockname())


def refusal() -> str | None:
    """Try :func:`enter` in a throw-away process, because a failure halfway cannot be undone.

    Returns:
        ``None`` if it works here, else the reason why not, for the user.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        number = errno.EIO
        try:
            enter()
            number = 0
        except OSError as error:
            number = error.errno or errno.EIO
        finally:
            os.write(write_end, struct.pack("i", number))
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    number = struct.unpack("i", answer)[0] if answer else errno.EIO
    if number == 0:
        return None
    return _REASONS.get(number, os.strerror(number))
