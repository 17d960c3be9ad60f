# SPDX-License-Identifier: GPL-2.0
# guest: timeout=1500 smp=2 mem=3072
"""Users in the kernel: NVMe over Fabrics and NFS.

NVMe's drivers know the first network namespace alone, so both ends are there, on one device; packets from one QP to the
other take the loopback interface. NFS has a server in one namespace and a client in the other. Data is compared with
what is on the disk behind.
"""

import contextlib
import hashlib
import os
import time

import pytest

from testbed import DRIVER, SCRATCH, Job, Testbed, counters, rdma_links, run, sh, sysfs, wait_until

DEV, NETDEV, ADDRESS = f"{DRIVER}0", "s0", "10.9.0.1"
CONFIG = "/sys/kernel/config"
TARGET, PORT_DIR = f"{CONFIG}/nvmet/subsystems/selftest", f"{CONFIG}/nvmet/ports/1"
DISK, RAM = "/dev/nvme0n1", "/dev/ram0"
MIB = 1 << 20


# NFS first: with NVMe the first report of lockdep is about nvmet itself, and then lockdep is off (kmsg.py).
NFSD = """
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
echo "{share} *(rw,fsid=0,no_root_squash,insecure,no_subtree_check)" > /etc/exports
exportfs -ra
rpc.nfsd -N 3 -V 4 -G 10 -L 10 --rdma=20049 4
grep -q "rdma 20049" /proc/fs/nfsd/portlist
exec rpc.mountd -N 3 -F
"""


@pytest.mark.parametrize("version", [4, 6])
def test_nfs(version):
    """A mount over RDMA (NFS 4.1): files of many sizes there and back, many at a time, through the cache and without."""
    share, mount = "/srv/selftest", f"{SCRATCH}/nfs"
    os.makedirs(mount, exist_ok=True)
    # Here, since what is mounted by a program in another network namespace is seen by that program alone.
    sh(f"mkdir -p {share} /var/lib/nfs/rpc_pipefs; mount -t tmpfs none {share}; modprobe rpcrdma; modprobe nfsd; modprobe nfsv4")
    with Testbed(mtu=4200) as bed:
        server = bed.h1.start("sh", "-exc", NFSD.format(share=share))
        server.wait_for("+ exec rpc.mountd", 90)
        address = f"[{bed.h1.ip6}]" if version == 6 else bed.h1.ip4
        client = bed.h2.start("sh", "-exc", f"""
            mount -t nfs -o vers=4.1,proto=rdma{version if version == 6 else ''},port=20049 {address}:/ {mount}
            cd {mount}
            for n in 1 2 3 4; do
                head -c $((n * 300001)) /dev/urandom > /tmp/nfs-$n
                cp /tmp/nfs-$n $n & pids="$pids $!"
            done
            wait $pids
            sync
            for n in 1 2 3 4; do cmp /tmp/nfs-$n {share}/$n; done
            head -c 999 /tmp/nfs-1 > small
            cmp -n 999 /tmp/nfs-1 {share}/small
            dd if=/dev/urandom of={share}/big bs=1M count=3
            dd if=big of=/tmp/nfs-big bs=128k iflag=direct
            cmp /tmp/nfs-big {share}/big
            cd /
            umount {mount}
            echo all is well
            """)
        try:
            r = client.wait(200)
            assert r.rc == 0 and "all is well" in r.out, f"{r}\n--- server\n{server.result()}"
        finally:
            client.kill()
            server.kill()
            bed.h1.run("sh", "-c", "mount -t nfsd nfsd /proc/fs/nfsd; rpc.nfsd 0; exportfs -ua", timeout=90)
    run(["umount", share])


@pytest.fixture(scope="module")
def link():
    """One RDMA device in the first network namespace."""
    for dev in rdma_links():
        run(["rdma", "link", "delete", dev])
    if not os.path.ismount(CONFIG):
        sh(f"modprobe configfs && {{ mountpoint -q {CONFIG} || mount -t configfs none {CONFIG}; }}")
    sh(f"ip link set lo up; ip link add {NETDEV} type veth peer name s1; ip link set s1 mtu 4200 up; "
       f"ip link set {NETDEV} mtu 4200 up; ip addr add {ADDRESS}/24 dev {NETDEV}")
    add_link()
    run(["modprobe", "brd", "rd_nr=1", "rd_size=65536"])
    yield DEV
    for dev in rdma_links():
        run(["rdma", "link", "delete", dev])
    run(["ip", "link", "delete", NETDEV])


def add_link():
    run(["rdma", "link", "add", DEV, "type", DRIVER, "netdev", NETDEV])
    wait_until(lambda: "ACTIVE" in sysfs(DEV, "ports/1/state"), 30, "not active")


def write(path, value):
    with open(path, "w") as f:
        f.write(value)


@contextlib.contextmanager
def target(*options):
    """The RAM disk, exported over RDMA; options are of nvmet-rdma."""
    sh("modprobe -r nvme-rdma nvmet-rdma")
    run(["modprobe", "nvmet-rdma", *options])
    run(["modprobe", "nvme-rdma"])
    for path in (TARGET, f"{TARGET}/namespaces/1", PORT_DIR):
        os.mkdir(path)
    write(f"{TARGET}/attr_allow_any_host", "1")
    write(f"{TARGET}/namespaces/1/device_path", RAM)
    write(f"{TARGET}/namespaces/1/enable", "1")
    for name, value in (("trtype", "rdma"), ("adrfam", "ipv4"), ("traddr", ADDRESS), ("trsvcid", "4420")):
        write(f"{PORT_DIR}/addr_{name}", value)
    exported = f"{PORT_DIR}/subsystems/selftest"
    try:
        os.symlink(TARGET, exported)
        yield
    finally:
        run(["nvme", "disconnect", "-n", "selftest"], check=False)
        if os.path.islink(exported):
            os.unlink(exported)
        write(f"{TARGET}/namespaces/1/enable", "0")
        for path in (PORT_DIR, f"{TARGET}/namespaces/1", TARGET):
            os.rmdir(path)


@contextlib.contextmanager
def connected(*options):
    run(["nvme", "connect", "-t", "rdma", "-a", ADDRESS, "-s", "4420", "-n", "selftest", *options], timeout=90)
    try:
        wait_until(lambda: os.path.exists(DISK), 30, "no disk")
        yield
    finally:
        run(["nvme", "disconnect", "-n", "selftest"], timeout=90, check=False)
        wait_until(lambda: not os.path.exists(DISK), 30, "the disk stays")


def verify(*options, seconds=200):
    """fio writes, reads back and compares checksums; and whatever was written is on the disk behind."""
    r = run(["fio", "--name=x", f"--filename={DISK}", "--ioengine=libaio", "--direct=1", "--verify=crc32c",
             "--verify_fatal=1", "--output-format=terse", *options], timeout=seconds)
    assert "verify:" not in r.out, r
    assert digest(DISK, 16 * MIB) == digest(RAM, 16 * MIB)


def digest(path, length):
    """The first bytes of a block device, from the device itself."""
    with open(path, "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        data = hashlib.sha256()
        while length > 0 and (block := f.read(min(length, MIB))):
            data.update(block)
            length -= len(block)
    return data.hexdigest()


def queue_pairs():
    return run(["rdma", "resource", "show", DEV]).out


@pytest.mark.parametrize("options", [[], ["use_srq=1"]], ids=["own_receives", "shared_receives"])
def test_nvme(link, options):
    """Small requests (their data inline in the command), large ones (by fast-registered regions), many at a time."""
    idle = queue_pairs()
    with target(*options):
        with connected("--nr-io-queues=2", "-Q", 32):
            verify("--rw=randrw", "--bsrange=512-4k", "--size=512k", "--iodepth=16")
            verify("--rw=randrw", "--bsrange=4k-1m", "--size=12m", "--iodepth=8")
        with connected("--nr-io-queues=1", "-Q", 16):
            verify("--rw=write", "--bs=1m", "--size=8m", "--iodepth=2")
    wait_until(lambda: queue_pairs().split(" cq ")[0] == idle.split(" cq ")[0], 30, lambda: f"{idle} {queue_pairs()}")


def test_nvme_polled_queues(link):
    """Queues whose completions the host polls for itself (IB_POLL_DIRECT), and those with an interrupt (IB_POLL_SOFTIRQ)."""
    with target(), connected("--nr-io-queues=1", "--nr-write-queues=1", "--nr-poll-queues=1", "-Q", 16):
        verify("--rw=randrw", "--bs=16k", "--size=2m", "--iodepth=4", "--ioengine=pvsync2", "--hipri=1")


def test_nvme_with_loss(link):
    """Three in a hundred lost on the way between host and target: trains of packets, so there are only some hundreds."""
    with target(), connected("--nr-io-queues=2", "-Q", 16):
        before = counters(DEV)["completer_retry_err"]
        run(["tc", "qdisc", "replace", "dev", "lo", "root", "netem", "loss", "3%"])
        direct = f"/sys/class/infiniband/{DEV}/direct"
        write(direct, "0")
        try:
            verify("--rw=randrw", "--bsrange=4k-256k", "--size=6m", "--iodepth=4")
        finally:
            write(direct, "1")
            run(["tc", "qdisc", "delete", "dev", "lo", "root"])
        assert counters(DEV)["completer_retry_err"] > before, "nothing was lost"


def test_nvme_again_and_again(link):
    with target():
        for _ in range(5):
            with connected("--nr-io-queues=2", "-Q", 16):
                with open(DISK, "rb") as f:
                    assert len(f.read(4096)) == 4096


@pytest.mark.parametrize("busy", [False, True])
def test_nvme_device_goes(link, busy):
    """The RDMA device is deleted under host and target, with requests under way too; it comes again and serves."""
    with target():
        with connected("--nr-io-queues=2", "-Q", 16, "--ctrl-loss-tmo=1"):
            job = None
            if busy:
                job = Job(["fio", "--name=x", f"--filename={DISK}", "--ioengine=libaio", "--direct=1", "--rw=randrw",
                           "--bsrange=4k-128k", "--size=32m", "--iodepth=8", "--time_based", "--runtime=300"])
                before = counters(DEV)["rdma_sends"]
                wait_until(lambda: counters(DEV)["rdma_sends"] > before + 50, 60, "no requests")
            since = time.monotonic()
            run(["rdma", "link", "delete", DEV], timeout=120)
            assert time.monotonic() - since < 90
            if job:
                job.wait(120)
        add_link()
    with target(), connected("--nr-io-queues=1", "-Q", 16):
        verify("--rw=write", "--bs=64k", "--size=1m")
