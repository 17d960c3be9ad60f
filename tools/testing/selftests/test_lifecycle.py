# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=2048
"""Coming and going, hundreds of times, with the books kept: memory, references and sockets are where they were."""

import glob
import os
import random
import re
import time

import pyverbs.enums as e
import pytest

from impair import qdisc
from testbed import DRIVER, SCRATCH, SLOW, Testbed, module_of, modules, rdma_links, run, sh, wait_until
from verbs import FULL_ACCESS, Endpoint, pair

ROUNDS = 200 // SLOW
# Not vmap_area: the kernel frees those in large batches; areas in use are counted one by one below.
CACHES = re.compile(r"^(kmalloc-|dma-kmalloc|kernfs_node_cache|UDP|UDPv6|sock_inode_cache|skbuff_|ip6_dst|ip_dst|rtable|pid|"
                    r"radix_tree_node|maple_node|task_struct|shmem_inode|pool_workqueue|ferroce|rxe)")


def settle():
    """Let the kernel free what it is about to free, and return what its caches hold to themselves."""
    sh("sync; echo 3 > /proc/sys/vm/drop_caches")
    for path in glob.glob("/sys/kernel/slab/*/shrink"):
        try:
            with open(path, "w") as f:
                f.write("1")
        except OSError:
            pass


def slabs():
    """Cache -> objects in use."""
    with open("/proc/slabinfo") as f:
        rows = [line.split() for line in f if not line.startswith(("#", "slabinfo"))]
    return {r[0]: int(r[1]) for r in rows if CACHES.match(r[0])}


def field(path, name):
    with open(path) as f:
        return int(re.search(rf"^{name}:?\s+(\d+)", f.read(), re.M)[1])


def sockets():
    with open("/proc/net/sockstat") as f:
        return int(re.search(r"sockets: used (\d+)", f.read())[1])


def of_our_module():
    """Areas of the kernel's vmalloc space that our module asked for."""
    with open("/proc/vmallocinfo") as f:
        return sum(f"[{module_of(DRIVER)}]" in line for line in f)


def books():
    settle()
    return {"slabs": slabs(), "percpu": field("/proc/meminfo", "Percpu"), "vmalloc": field("/proc/meminfo", "VmallocUsed"),
            "sockets": sockets(), "areas": of_our_module(),
            "modules": {k: v for k, v in modules().items() if k in ("ib_core", "ib_uverbs", "udp_tunnel", "ip6_udp_tunnel")}}


def differences(before, after, rounds):
    """What grew by at least half an object in each round, or 1 KiB of other memory, which comes in larger pieces."""
    bad = [f"{name}: {n} objects more" for name in after["slabs"]
           if (n := after["slabs"][name] - before["slabs"].get(name, 0)) >= rounds // 2]
    bad += [f"{name}: {n} KiB more" for name in ("percpu", "vmalloc") if (n := after[name] - before[name]) >= max(rounds, 200)]
    bad += [f"{name}: {before[name]} before, {after[name]} now" for name in ("sockets", "areas", "modules")
            if after[name] != before[name]]
    return bad


def balanced(before, rounds):
    """Compare the books until they agree: some memory is freed only after a grace period or by a worker."""
    last = []

    def agree():
        last[:] = differences(before, books(), rounds)
        return not last
    wait_until(agree, 30, lambda: "\n".join(last), step=1)


@pytest.fixture
def bed():
    with Testbed(links=False) as b:
        yield b


@pytest.mark.seconds(500)
def test_link_add_and_delete(bed):
    # A program each: rdma(8) reads the names of the devices once.
    loop = (f"for i in $(seq {{}}); do rdma link add {bed.h1.dev} type {DRIVER} netdev {bed.h1.netdev}; "
            f"rdma link delete {bed.h1.dev}; done")
    bed.h1.run("sh", "-ec", loop.format(10), timeout=120)  # Whatever is allocated once, is now.
    before = books()
    bed.h1.run("sh", "-ec", loop.format(ROUNDS), timeout=350)
    assert not rdma_links() and bed.h1.udp_sockets() == 0
    balanced(before, ROUNDS)


def test_failing_link_add(bed):
    """Additions that fail late: the name is taken, when all else is made already."""
    bed.h2.add_link()
    os.makedirs(SCRATCH, exist_ok=True)

    def fail(rounds):
        path = f"{SCRATCH}/batch"
        with open(path, "w") as f:
            f.write(f"link add {bed.h2.dev} type {DRIVER} netdev {bed.h1.netdev}\n" * rounds)
        bed.h1.run("rdma", "--force", "--batch", path, timeout=250, check=False)
    fail(10)
    before = books()
    fail(ROUNDS)
    balanced(before, ROUNDS)
    assert bed.h1.udp_sockets() == 0


def test_module_load_and_unload(bed):
    """The module alone, and with a link that it has to take down itself."""
    name = module_of(DRIVER)
    path = run(["modinfo", "-n", name]).out.strip()
    run(["modprobe", name])
    run(["rmmod", name])
    loop = f"for i in $(seq {{}}); do insmod {path}; rmmod {name}; done"
    linked = (f"for i in $(seq {{}}); do insmod {path}; rdma link add {bed.h1.dev} type {DRIVER} netdev {bed.h1.netdev}; "
              f"rmmod {name}; done")
    bed.h1.run("sh", "-ec", linked.format(3))
    before = books()
    bed.h1.run("sh", "-ec", loop.format(ROUNDS - 20), timeout=280)
    bed.h1.run("sh", "-ec", linked.format(20), timeout=120)
    balanced(before, ROUNDS)
    assert name not in modules() and not rdma_links()


def churn(dev_a, dev_b, rounds, timeout):
    """Queue pairs that are destroyed with work under way, at random moments."""
    rng = random.Random(1)
    with pair(dev_a, dev_b, depth=16, cqe=4000) as (a, b):
        for _ in range(rounds):
            x, y = Endpoint(a.dev, share=a, depth=16), Endpoint(b.dev, share=b, depth=16)
            x.connect(y, timeout=timeout)
            y.connect(x, timeout=timeout)
            y.recv(0, 20000)
            for i in range(rng.randrange(1, 8)):
                x.write(0, 20000, y.at(20000))
                y.read(40000, 20000, x.at(0))
            x.send(0, 20000)
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.01)
            for end in rng.sample([x, y], 2):
                end.close()
                if rng.random() < 0.3:
                    time.sleep(rng.random() * 0.01)
            while a.cq.poll(64)[0] or b.cq.poll(64)[0]:
                pass


def test_destroy_under_traffic(bed):
    for h in bed.hosts:
        h.add_link()
        h.gid_index(h.ip4)
    churn(bed.h1.dev, bed.h2.dev, 20, timeout=14)
    before = books()
    churn(bed.h1.dev, bed.h2.dev, ROUNDS, timeout=14)
    balanced(before, ROUNDS)


def test_destroy_while_the_timer_runs(bed):
    """The peer answers nothing; timers of microseconds to milliseconds expire while the queue pair goes."""
    for h in bed.hosts:
        h.add_link()
        h.gid_index(h.ip4)
    rng = random.Random(2)
    with pair(bed.h1.dev, bed.h2.dev, depth=16, cqe=4000) as (a, b):
        for round_ in range(ROUNDS):
            x = Endpoint(a.dev, share=a, depth=16)
            b.psn = rng.getrandbits(24)
            # Half of them wait for an answer that never comes, half for a receive that is never posted.
            silent = round_ % 2
            x.connect(b, timeout=1 + round_ % 10, retry=7, rnr_retry=7)
            y = None
            if not silent:
                y = Endpoint(b.dev, share=b, depth=16)
                x.to_state(e.IBV_QPS_RESET)
                x.connect(y, timeout=14, rnr_retry=7)
                y.connect(x, min_rnr_timer=1 + round_ % 12)
            x.send(0, 5000)
            time.sleep(rng.random() * 0.01)
            x.close()
            if y:
                y.close()
            while a.cq.poll(64)[0]:
                pass


def test_packets_parked_in_a_qdisc(bed):
    """Packets that the network still holds outlive their queue pair, its device and the module."""
    for h in bed.hosts:
        h.add_link()
        h.gid_index(h.ip4)
    for h, other in ((bed.h1, bed.h2), (bed.h2, bed.h1)):
        # Or the search for the hardware address would be parked as well.
        h.run("ip", "neigh", "replace", other.ip4, "lladdr", other.mac(), "dev", h.netdev)
    with qdisc([bed.h1], "netem delay 120s limit 1000"):
        with pair(bed.h1.dev, bed.h2.dev) as (a, b):
            for _ in range(8):
                a.write(0, 20000, b.at(0))
            start = time.monotonic()
        assert time.monotonic() - start < 30, "destroying a queue pair waits for its packets"
        bed.h1.delete_link()
        bed.h2.delete_link()
        run(["rmmod", module_of(DRIVER)], timeout=60)


def test_memory_regions(bed):
    """Registered and deregistered pages are counted back to the process."""
    bed.h1.add_link()
    from pyverbs.mr import MR
    end = Endpoint(bed.h1.dev)
    for _ in range(3):
        MR(end.pd, 1 << 20, FULL_ACCESS).close()
    before, pinned = books(), field("/proc/self/status", "VmPin")
    for i in range(ROUNDS):
        MR(end.pd, 4096 * (1 + i % 300) + i, FULL_ACCESS).close()
    assert field("/proc/self/status", "VmPin") == pinned
    balanced(before, ROUNDS)
    end.close()
    assert field("/proc/self/status", "VmPin") == 0


def test_objects_of_an_open_program(bed):
    """PDs, CQs and QPs made and destroyed, with their mapped rings."""
    bed.h1.add_link()
    for _ in range(10):
        Endpoint(bed.h1.dev, depth=100).close()
    before = books()
    for _ in range(60):
        Endpoint(bed.h1.dev, depth=100, channel=True).close()
    balanced(before, 60)
