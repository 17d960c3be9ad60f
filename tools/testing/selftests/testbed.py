# SPDX-License-Identifier: GPL-2.0
"""Two hosts in one guest: network namespaces h1 and h2, joined by a veth pair, with one RDMA device each.

    with Testbed(mtu=4200) as bed:
        bed.pair(["ibv_rc_pingpong", "-d", bed.h1.dev, ...], ["ibv_rc_pingpong", "-d", bed.h2.dev, ..., bed.h1.ip4])

RDMA devices are visible in every namespace (the kernel's default, "shared" mode), so one process may open both
ends. Programs that exchange addresses over TCP have to run in the namespace of their host.

Every wait here has an end, and a failure says what both programs printed.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time

DRIVER = os.environ.get("FERROCE_TYPE", "ferroce")
"""The driver under test, as `rdma link add ... type` knows it."""

MODULES = {"rxe": "rdma_rxe"}
"""Names of kernel modules that differ from the link type."""

KERNEL = os.environ.get("KERNEL", "stock")
"""The kernel that this guest runs: stock or debug."""

SLOW = int(os.environ.get("SLOW", "1"))
"""How much longer than on the stock kernel things may take: limits of time are multiplied by it."""

ROCE_PORT = 4791
SCRATCH = "/tmp/selftests"


def module_of(kind):
    return MODULES.get(kind, kind)


class Result:
    """What a finished program left: exit code and its output, standard error mixed in."""

    def __init__(self, argv, rc, out):
        self.argv, self.rc, self.out = argv, rc, out

    def __str__(self):
        return f"$ {shlex.join(self.argv)}\n{self.out.rstrip()}\n[exit code {self.rc}]"

    __repr__ = __str__


class Job:
    """A program in the background; its output goes to a file, so that no pipe can fill up."""

    running = []

    def __init__(self, argv, ns=None, env=None):
        self.argv = [str(a) for a in argv]
        os.makedirs(SCRATCH, exist_ok=True)
        self._out = tempfile.NamedTemporaryFile(dir=SCRATCH, prefix="job-", suffix=".log")
        full = (["ip", "netns", "exec", ns] if ns else []) + self.argv
        self.proc = subprocess.Popen(
            full, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, **(env or {})})
        Job.running.append(self)

    @property
    def pid(self):
        return self.proc.pid

    @property
    def out(self):
        with open(self._out.name, errors="replace") as f:
            return f.read()

    def result(self):
        return Result(self.argv, self.proc.poll(), self.out)

    def wait(self, timeout):
        """The result, or an AssertionError with the output so far."""
        try:
            self.proc.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            stack = self.kernel_stack()
            self.kill()
            raise AssertionError(f"still running after {timeout * SLOW} s:\n{self.result()}\n{stack}") from None
        Job.running.remove(self) if self in Job.running else None
        return self.result()

    def wait_for(self, text, timeout=60):
        """Wait until the program has printed text."""
        def seen():
            assert self.proc.poll() is None or text in self.out, f"ended without {text!r}:\n{self.result()}"
            return text in self.out
        wait_until(seen, timeout, lambda: f"no {text!r} from:\n{self.result()}")

    def wait_listening(self, port, timeout=60):
        """Wait until somebody in the program's network namespace listens on a TCP port."""
        def listening():
            assert self.proc.poll() is None, f"ended before it listened:\n{self.result()}"
            return port in tcp_listeners(self.pid)
        wait_until(listening, timeout, lambda: f"does not listen on {port}:\n{self.result()}")

    def wait_cm_listening(self, port):
        """Wait until somebody listens for connections by rdma_cm."""
        wait_until(lambda: cm_listens(port), what=lambda: f"nobody listens:\n{self.result()}")

    def kernel_stack(self):
        """Where the threads of a stuck program sit in the kernel."""
        lines = []
        try:
            for tid in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{tid}/stack") as f:
                    lines.append(f"[thread {tid}]\n{f.read()}")
        except OSError:
            pass
        return "".join(lines)

    def signal(self, sig):
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:
            pass

    def kill(self, timeout=60):
        """SIGKILL, and wait: a process that does not die then hangs in the kernel, which is a failure."""
        self.signal(signal.SIGKILL)
        if self in Job.running:
            Job.running.remove(self)
        try:
            self.proc.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not die:\n{self.result()}\n{self.kernel_stack()}") from None


def kill_all():
    """End every job that a test left behind."""
    for job in list(Job.running):
        job.kill()


def run(argv, timeout=60, ns=None, check=True, env=None):
    """Run a program to its end. With check, a non-zero exit code is a failure."""
    res = Job(argv, ns, env).wait(timeout)
    assert not check or res.rc == 0, str(res)
    return res


def sh(script, timeout=60, check=True):
    return run(["sh", "-ec", script], timeout, check=check)


def librxe_ops():
    """For LD_PRELOAD: librxe with the functions that it lacks (librxe_ops.c)."""
    made = f"{SCRATCH}/librxe_ops.so"
    if not os.path.exists(made):
        run(["gcc-14", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", made,
             f"{os.path.dirname(os.path.abspath(__file__))}/librxe_ops.c", "-l:libibverbs.so.1"])
    return made


def wait_until(cond, timeout=30, what="condition", step=0.02):
    """Poll until cond() is true; what is a text or a function that makes one."""
    end = time.monotonic() + timeout * SLOW
    while True:
        value = cond()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout * SLOW} s: {what() if callable(what) else what}")
        time.sleep(step)


def _sockets(path):
    with open(path) as f:
        next(f)
        return [line.split() for line in f]


def tcp_listeners(pid="self"):
    ports = set()
    for name in ("tcp", "tcp6"):
        try:
            ports |= {int(s[1].rsplit(":", 1)[1], 16) for s in _sockets(f"/proc/{pid}/net/{name}") if s[3] == "0A"}
        except OSError:
            pass
    return ports


def cm_ids():
    """Lines of `rdma resource show cm_id`, those of kernel users included."""
    return run(["rdma", "resource", "show", "cm_id"]).out.splitlines()


def cm_listens(port):
    """Whether somebody listens for connections by rdma_cm."""
    return any("LISTEN" in line and re.search(rf":{port}\b", line) for line in cm_ids())


def modules():
    """Loaded modules with their reference counts."""
    with open("/proc/modules") as f:
        return {m[0]: int(m[2]) for m in map(str.split, f)}


def module_loaded(kind):
    return module_of(kind) in modules()


def rdma_links():
    """Names of the RDMA devices that there are."""
    try:
        return sorted(os.listdir("/sys/class/infiniband"))
    except FileNotFoundError:
        return []


def sysfs(dev, path):
    with open(f"/sys/class/infiniband/{dev}/{path}") as f:
        return f.read().strip()


def counters(dev):
    """The port's hardware counters."""
    base = f"/sys/class/infiniband/{dev}/ports/1/hw_counters"
    return {n: int(sysfs(dev, f"ports/1/hw_counters/{n}")) for n in os.listdir(base) if n != "lifespan"}


def gids(dev, most=24):
    """Index -> GID as sysfs prints it, for the first entries of the table that are in use."""
    table = {}
    for i in range(most):
        gid = sysfs(dev, f"ports/1/gids/{i}")
        if gid.strip("0:"):
            table[i] = gid
    return table


def gid_of(ip):
    """The GID of an IP address in sysfs' notation."""
    import ipaddress
    addr = ipaddress.ip_address(ip)
    raw = addr.packed if addr.version == 6 else b"\0" * 10 + b"\xff\xff" + addr.packed
    return ":".join(raw[i:i + 2].hex() for i in range(0, 16, 2))


class Host:
    """One namespace with one end of the wire and its RDMA device."""

    def __init__(self, number, kind):
        self.number, self.kind = number, kind
        self.ns, self.netdev = f"h{number}", f"v{number}"
        self.dev = f"{kind}{number}"
        self.ip4, self.ip6 = f"10.0.0.{number}", f"fd00::{number}"

    def run(self, *argv, **kw):
        return run(argv, ns=self.ns, **kw)

    def start(self, *argv, **kw):
        return Job(argv, ns=self.ns, **kw)

    def ip(self, version):
        return self.ip6 if version == 6 else self.ip4

    def gid_index(self, ip, timeout=30):
        """The index of an address in the device's GID table; waits for it, the core fills the table in its own time."""
        want = gid_of(ip)

        def find():
            hits = [i for i, g in gids(self.dev).items() if g == want]
            return [hits[0]] if hits else None
        return wait_until(find, timeout, lambda: f"no GID {want} on {self.dev}: {gids(self.dev)}")[0]

    def add_link(self, dev=None, kind=None, netdev=None, check=True):
        self_dev = dev or self.dev
        return self.run("rdma", "link", "add", self_dev, "type", kind or self.kind, "netdev", netdev or self.netdev,
                        check=check)

    def delete_link(self, dev=None, check=True):
        return run(["rdma", "link", "delete", dev or self.dev], check=check)

    def link(self, dev=None):
        """What `rdma link show` says in this namespace, where it knows the name of the netdev."""
        return json.loads(self.run("rdma", "-j", "link", "show", f"{dev or self.dev}/1").out)[0]

    def udp_sockets(self, port=ROCE_PORT):
        """Sockets bound to a UDP port in this namespace, IPv4 and IPv6 together."""
        text = self.run("cat", "/proc/net/udp", "/proc/net/udp6").out
        return len(re.findall(rf"^\s*\d+: [0-9A-F]+:{port:04X} ", text, re.M))

    def set_switch(self, name, on):
        """A switch of ferroce, as text."""
        with open(f"/sys/class/infiniband/{self.dev}/{name}", "w", encoding="ascii") as f:
            f.write(on)

    def set_icrc(self, on):
        self.set_switch("icrc", on)

    def buffers_sent(self):
        """Buffers that went out of this end of the wire; each may be of several packets."""
        return int(self.run("cat", f"/sys/class/net/{self.netdev}/statistics/tx_packets").out.split()[-1])

    def counters(self):
        return counters(self.dev)

    def mac(self):
        with_addr = json.loads(self.run("ip", "-j", "link", "show", self.netdev).out)
        return with_addr[0]["address"]


class Testbed:
    """Namespaces, wire and links; a context manager that leaves nothing behind. nics: the guest's two network interfaces
    that are to be the ends of the wire, instead of a veth pair."""

    __test__ = False

    def __init__(self, mtu=4200, kinds=(DRIVER, DRIVER), links=True, nics=None):
        self.mtu, self.links, self.nics = mtu, links, nics
        self.h1, self.h2 = Host(1, kinds[0]), Host(2, kinds[1])
        self.hosts = (self.h1, self.h2)
        self._ports = itertools.count(18601)

    def __enter__(self):
        self.clear()
        script = ["ip netns add h1", "ip netns add h2"]
        script += ([f"ip link set {nic} netns {h.ns} name {h.netdev}" for nic, h in zip(self.nics, self.hosts)] if self.nics
                   else ["ip link add v1 netns h1 type veth peer name v2 netns h2"])
        for h in self.hosts:
            # Without duplicate address detection the link-local address, and with it the GID table, settles at once.
            script += [f"ip netns exec {h.ns} sysctl -qw net.ipv6.conf.all.accept_dad=0 "
                       f"net.ipv6.conf.{h.netdev}.accept_dad=0",
                       f"ip -n {h.ns} link set lo up", f"ip -n {h.ns} link set {h.netdev} mtu {self.mtu} up",
                       f"ip -n {h.ns} addr add {h.ip4}/24 dev {h.netdev}",
                       f"ip -n {h.ns} addr add {h.ip6}/64 dev {h.netdev} nodad"]
        sh("\n".join(script))
        if self.links:
            for h in self.hosts:
                h.add_link()
            for h in self.hosts:
                if h.kind != "siw":  # its GID is a MAC address
                    h.gid_index(h.ip4)
                    h.gid_index(h.ip6)
                self.wait_active(h)
        return self

    def __exit__(self, *exc):
        kill_all()
        self.clear()

    @staticmethod
    def wait_active(host):
        wait_until(lambda: "ACTIVE" in sysfs(host.dev, "ports/1/state"), 30, f"{host.dev} is not active")

    @staticmethod
    def clear():
        """Delete every link and the namespaces of a bed, this one's or an earlier one's."""
        for dev in rdma_links():
            run(["rdma", "link", "delete", dev], check=False)
        for name in ("h1", "h2"):
            if os.path.exists(f"/run/netns/{name}"):
                run(["ip", "netns", "delete", name])
        wait_until(lambda: not rdma_links(), 60, lambda: f"links stay: {rdma_links()}")

    def port(self):
        """A TCP port that no earlier pair of this bed has used."""
        return next(self._ports)

    def pair(self, server, client, port, timeout=120):
        """Run a server on h1 and, once it listens, a client on h2; both must end well."""
        s = self.h1.start(*server)
        s.wait_listening(port)
        c = self.h2.start(*client)
        try:
            rc = c.wait(timeout)
            rs = s.wait(timeout if rc.rc == 0 else 5)
        except AssertionError as why:
            s.signal(signal.SIGINT)
            raise AssertionError(f"{why}\n--- server\n{s.result()}\n--- client\n{c.result()}") from None
        finally:
            s.kill()
            c.kill()
        assert rs.rc == 0 and rc.rc == 0, f"--- server\n{rs}\n--- client\n{rc}"
        return rs, rc
