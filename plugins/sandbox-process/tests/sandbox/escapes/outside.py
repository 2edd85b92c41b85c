"""A process of the host with everything that a run could want to reach. Ends with its input, and says who came."""

import ctypes
import json
import os
import select
import socket
import sys

canary, directory = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
name = "skillgate-%d" % os.getpid()
key = 0x5E000000 + os.getpid()


def listener(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind)
    s.bind(address)
    if kind == socket.SOCK_STREAM:
        s.listen(64)
    return s


abstract = listener(socket.AF_UNIX, "\0" + name)
datagram = listener(socket.AF_UNIX, "\0" + name + "-datagram", socket.SOCK_DGRAM)
path = os.path.join(directory, "socket")
file = listener(socket.AF_UNIX, path)
os.chmod(path, 0o777)
tcp = listener(socket.AF_INET, ("127.0.0.1", 0))
udp = listener(socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)
shared = libc.shmget(key, 4096, 0o1666)
messages = libc.msgget(key, 0o1666)
semaphores = libc.semget(key, 1, 0o1666)
queue = ("/" + name).encode()
librt = ctypes.CDLL("librt.so.1", use_errno=True)
posix = librt.mq_open(queue, os.O_CREAT | os.O_RDWR, 0o666, None)
assert min(shared, messages, semaphores, posix) >= 0, os.strerror(ctypes.get_errno())
about = {
    "outside_pid": os.getpid(), "abstract": name, "abstract_datagram": name + "-datagram", "socket_file": path,
    "port": tcp.getsockname()[1], "udp_port": udp.getsockname()[1], "ipc_key": key, "queue": name, "hostname": os.uname().nodename,
}
print(json.dumps(about), flush=True)
visits = 0


def answer(s):
    if s.type == socket.SOCK_STREAM:
        with s.accept()[0] as caller:
            caller.send(canary.encode())
    else:
        who = s.recvfrom(100)[1]
        if who:
            s.sendto(canary.encode(), who)


try:
    while True:
        ready = select.select([sys.stdin, abstract, datagram, file, tcp, udp], [], [])[0]
        if sys.stdin in ready:
            break
        for s in ready:
            visits += 1
            try:
                answer(s)
            except OSError:
                pass  # it did not wait for the answer
finally:
    libc.shmctl(shared, 0, None)
    libc.msgctl(messages, 0, None)
    libc.semctl(semaphores, 0, 0)
    librt.mq_unlink(queue)
print(json.dumps({"visits": visits}), flush=True)
