#!/usr/bin/env python3
"""What a service manager passes to `serve`: sd_notify, the watchdog, socket activation, and options in a file and in the
environment: `test_systemd.py BINARY MODEL`. This program takes the manager's place; systemd-socket-activate does where it is
installed. Standard library only; closes with `N passed, N failed`."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from checks import check, results, skip

BIN, MODEL = sys.argv[1], os.path.abspath(sys.argv[2])
WAIT = 120
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("ROSEINFER_", "LISTEN_", "NOTIFY_", "WATCHDOG_"))}


class Manager:
    """The datagram socket that NOTIFY_SOCKET names."""

    def __init__(self, address):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self.s.settimeout(WAIT)
        self.address, self.seen = address, []

    def wait(self, what):
        """The next report with this line; those before it are kept in seen."""
        while True:
            report = self.s.recv(4096).decode()
            self.seen.append(report)
            if what in report.split("\n"):
                return report


def start(*args, env=None):
    return subprocess.Popen([BIN, "serve", *args], env=CLEAN | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def start_with(fds, log, *args, env):
    """A server whose descriptors 3, 4, ... are those of fds; the process id. Its standard error goes to the file log."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        high = [os.dup2(f.fileno(), 100 + i) for i, f in enumerate(fds)]  # 3 may be one of them
        for i, fd in enumerate(high):
            os.dup2(fd, 3 + i)
            os.close(fd)
        os.execve(BIN, [BIN, "serve", *args], CLEAN | {"LISTEN_PID": str(os.getpid())} | env)
    finally:
        os._exit(99)


def failed_start(*args, env=None):
    p = start(*args, env=env)
    try:
        err = p.communicate(timeout=WAIT)[1].decode()
    except subprocess.TimeoutExpired:
        p.kill()
        return None, "it serves"
    return p.returncode, err


def ask(s, path="/ready"):
    """The status of a GET over this connection."""
    s.settimeout(WAIT)
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    got = b""
    while chunk := s.recv(4096):
        got += chunk
    return int(got.split(b" ")[1]) if got else 0


def end(pid):
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_notify(folder, address):
    m = Manager(address)
    port = free_port()
    p = start(MODEL, f"--port={port}", env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"})
    ready = m.wait("READY=1")
    name = "abstract" if address.startswith("@") else "path"
    check(f"{name}: a status before READY", any(x == f"STATUS=loading {MODEL}" for x in m.seen[:-1]), m.seen)
    check(f"{name}: READY=1 has a status", ready == "READY=1\nSTATUS=serving rose-tiny", ready)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=WAIT) as r:
        check(f"{name}: /ready is 200 at READY=1", r.status == 200)
    for _ in range(3):
        m.wait("WATCHDOG=1")
    body = json.dumps({"prompt": "Once", "max_tokens": 8}).encode()
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=WAIT) as reply:
        check(f"{name}: it serves", json.load(reply)["usage"]["completion_tokens"] > 0)
    m.wait("WATCHDOG=1")  # also after it has worked
    p.send_signal(signal.SIGTERM)
    stopping = m.wait("STOPPING=1")
    check(f"{name}: STOPPING=1 has a status", "\nSTATUS=draining: 0 requests in flight" in stopping, stopping)
    _, err = p.communicate(timeout=WAIT)
    check(f"{name}: exit code 0", p.returncode == 0, err.decode()[-2000:])
    m.s.close()


def test_notify_wrong():
    rc, err = failed_start(MODEL, "--port=0", env={"NOTIFY_SOCKET": "relative"})
    check("a relative NOTIFY_SOCKET is refused", rc == 1 and "NOTIFY_SOCKET is 'relative': expected a path" in err, err)
    rc, err = failed_start(MODEL, "--port=0", env={"NOTIFY_SOCKET": "/" + 200 * "x"})
    check("a long NOTIFY_SOCKET is refused", rc == 1 and "at most 107 bytes" in err, err)
    rc, err = failed_start(MODEL, "--port=0", env={"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "x"})
    check("a wrong WATCHDOG_USEC is refused", rc == 1 and "WATCHDOG_USEC is 'x'" in err, err)


def test_stalled_engine(folder):
    """A stopped process sends no sign of life; a running one sends them again."""
    m = Manager(os.path.join(folder, "stalled"))
    p = start(MODEL, "--port=0", env={"NOTIFY_SOCKET": m.address, "WATCHDOG_USEC": "200000"})
    m.wait("WATCHDOG=1")
    p.send_signal(signal.SIGSTOP)
    m.s.setblocking(False)
    time.sleep(0.3)
    try:
        while m.s.recv(4096):
            pass
    except BlockingIOError:
        pass
    time.sleep(0.5)
    try:
        check("a stopped server sends nothing", False, m.s.recv(4096))
    except BlockingIOError:
        check("a stopped server sends nothing", True)
    m.s.settimeout(WAIT)
    p.send_signal(signal.SIGCONT)
    check("it goes on", m.wait("WATCHDOG=1") == "WATCHDOG=1")
    time.sleep(1)  # signs of life fill the socket
    p.terminate()
    _, err = p.communicate(timeout=WAIT)
    check("a manager that does not read holds nothing up", p.returncode == 0, err.decode())
    m.s.close()


def test_activation(folder):
    m = Manager(os.path.join(folder, "activation"))
    log = os.path.join(folder, "log")
    for name in ("TCP", "Unix"):
        if name == "TCP":
            listener = socket.create_server(("127.0.0.1", 0))
        else:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(os.path.join(folder, "listener"))
            listener.listen(16)
        early = socket.socket(listener.family)
        early.connect(listener.getsockname())  # waits in the backlog until the server is there
        pid = start_with([listener], log, MODEL, "--host=192.0.2.1",
                         env={"LISTEN_FDS": "1", "LISTEN_FDNAMES": "http", "NOTIFY_SOCKET": m.address})
        m.wait("READY=1")
        check(f"{name}: a client from before the start is answered", ask(early) == 200)
        late = socket.socket(listener.family)
        late.connect(listener.getsockname())
        check(f"{name}: and a later one", ask(late, "/health") == 200)
        with open(f"/proc/{pid}/fdinfo/3", encoding="ascii") as f:
            flags = int(next(x for x in f if x.startswith("flags:")).split()[1], 8)
        check(f"{name}: descriptor 3 is closed on exec", flags & os.O_CLOEXEC)
        rc = end(pid)
        with open(log, encoding="utf-8") as f:
            text = f.read()
        check(f"{name}: exit code 0", rc == 0, text)
        check(f"{name}: the log says where it listens", "listening on the socket of LISTEN_FDS" in text, text)
        check(f"{name}: the socket's file stays", name == "TCP" or os.path.exists(os.path.join(folder, "listener")))
        listener.close()
    m.s.close()


def refused(fds, env, folder):
    log = os.path.join(folder, "log")
    rc = os.waitstatus_to_exitcode(os.waitpid(start_with(fds, log, MODEL, "--port=0", env=env), 0)[1])
    with open(log, encoding="utf-8") as f:
        return rc, f.read()


def test_activation_wrong(folder):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    rc, err = refused([udp], {"LISTEN_FDS": "1"}, folder)
    check("a datagram socket is refused", rc == 1 and "descriptor 3 is no listening stream socket" in err, err)
    idle = socket.socket()
    rc, err = refused([idle], {"LISTEN_FDS": "1"}, folder)
    check("a socket that does not listen is refused", rc == 1 and "no listening stream socket" in err, err)
    with open("/dev/null", "rb") as f:
        rc, err = refused([f], {"LISTEN_FDS": "1"}, folder)
    check("a file is refused", rc == 1 and "the inherited descriptor 3: " in err, err)
    two = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    rc, err = refused(two, {"LISTEN_FDS": "2"}, folder)
    check("two sockets are refused", rc == 1 and "LISTEN_FDS is 2: the server takes over one socket" in err, err)
    rc, err = refused(two[:1], {"LISTEN_FDS": "x"}, folder)
    check("a wrong LISTEN_FDS is refused", rc == 1 and "LISTEN_FDS is 'x'" in err, err)
    # The variables were meant for another process: the address of the options counts.
    with tempfile.TemporaryDirectory() as other:
        m = Manager(os.path.join(other, "n"))
        port = free_port()
        p = start(MODEL, f"--port={port}", env={"LISTEN_FDS": "1", "LISTEN_PID": "1", "NOTIFY_SOCKET": m.address})
        m.wait("READY=1")
        check("LISTEN_PID of another process", ask(socket.create_connection(("127.0.0.1", port))) == 200)
        p.terminate()
        p.communicate(timeout=WAIT)


def test_socket_activate():
    program = shutil.which("systemd-socket-activate")
    if program is None:
        skip("systemd-socket-activate", "it is not installed (Debian: systemd)")
        return
    port = free_port()
    p = subprocess.Popen([program, "-l", f"127.0.0.1:{port}", os.path.abspath(BIN), "serve", MODEL], env=CLEAN,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline, status = time.monotonic() + WAIT, 0
    while status != 200 and time.monotonic() < deadline:  # 503 while the model loads
        try:
            status = ask(socket.create_connection(("127.0.0.1", port), timeout=WAIT))
        except ConnectionRefusedError:
            pass
        time.sleep(0.02)
    check("systemd-socket-activate starts the server for the first client", status == 200, status)
    p.terminate()
    _, err = p.communicate(timeout=WAIT)
    check("its server exits 0", p.returncode == 0, err.decode()[-2000:])


def test_options(folder):
    """A file and variables reach a real server, and the command line comes before both."""
    config = os.path.join(folder, "config.yaml")
    port = free_port()
    with open(config, "w", encoding="utf-8") as f:
        f.write(f"model: {MODEL} # here\nport: {port}\nserved-model-name: [file, second]\nmax_model_len: 64\n")
    m = Manager(os.path.join(folder, "options"))
    p = start("--max-model-len=32", env={"ROSEINFER_CONFIG": config, "ROSEINFER_SERVED_MODEL_NAME": "variable",
                                         "ROSEINFER_MAX_SEQS": "1", "NOTIFY_SOCKET": m.address})
    m.wait("READY=1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=WAIT) as r:
        models = json.load(r)["data"]
    check("options: the variable before the file", [x["id"] for x in models] == ["variable"], models)
    check("options: the command line before the file", models[0].get("max_model_len") == 32, models)
    p.terminate()
    _, err = p.communicate(timeout=WAIT)
    check("options: an unknown variable is named", "ROSEINFER_MAX_SEQS names no option and has no effect; did you mean "
          "ROSEINFER_MAX_NUM_SEQS?" in err.decode(), err.decode())
    with open(config, "w", encoding="utf-8") as f:
        f.write(f"model: {MODEL}\nmax-model-length: 3\n")
    rc, err = failed_start(f"--config={config}")
    check("options: an unknown key is an error with its line", rc == 2 and f"{config}:2: unknown key 'max-model-length'; "
          "did you mean max-model-len?" in err, err)
    m.s.close()


with tempfile.TemporaryDirectory() as tmp:
    test_notify(tmp, os.path.join(tmp, "notify"))
    test_notify(tmp, f"@rose-test-{os.getpid()}")
    test_notify_wrong()
    test_stalled_engine(tmp)
    test_activation(tmp)
    test_activation_wrong(tmp)
    test_socket_activate()
    test_options(tmp)
sys.exit(results())
