# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 smp=2 mem=2048
"""The device goes while programs hold it: they get errors and do not hang, and nothing of it stays."""

import json
import os
import signal

import pytest

from testbed import DRIVER, Job, Testbed, module_loaded, module_of, modules, rdma_links, run, wait_until

HOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "holder.py")


def delete_link(bed):
    bed.h1.delete_link()


def delete_netdev(bed):
    bed.h1.run("ip", "link", "delete", bed.h1.netdev)


def delete_peer_netdev(bed):
    """The other end of the pair goes, and takes this end along."""
    bed.h2.run("ip", "link", "delete", bed.h2.netdev)


def delete_namespace(bed):
    """With no program left in it, a namespace ends with its name, and its veth ends with it."""
    run(["ip", "netns", "delete", "h1"])


def unload_module(bed):
    run(["rmmod", module_of(DRIVER)], timeout=90)


WAYS = [delete_link, delete_netdev, delete_peer_netdev, delete_namespace, unload_module]


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("what", ["nobody", "idle", "objects", "groups", "traffic"])
def test_removal(way, what):
    with Testbed() as bed:
        dev = bed.h1.dev
        job = None
        if what != "nobody":
            job = Job(["python3", HOLDER, dev, what])
            job.wait_for("ready", 90)
        way(bed)
        wait_until(lambda: dev not in rdma_links(), 60, lambda: f"{dev} stays: {rdma_links()}")
        if job:
            r = job.wait(90)
            assert r.rc == 0 and "done" in r.out, r
        if way is unload_module:
            assert not module_loaded(DRIVER) and not rdma_links()
            bed.h1.add_link()
            return
        if way is delete_link:
            bed.h1.add_link()
            bed.h1.delete_link()
        if bed.h2.dev in rdma_links():
            bed.h2.delete_link(check=False)  # It may be going with its wire just now.
        wait_until(lambda: not rdma_links(), 60, lambda: f"{rdma_links()}")
        wait_until(lambda: modules()[module_of(DRIVER)] == 0, 30, lambda: f"module in use: {modules()[module_of(DRIVER)]}")
        run(["rmmod", module_of(DRIVER)])


@pytest.mark.differs_on_rxe("perftest's seven retries are for ever")
def test_peer_goes_under_traffic():
    """perftest runs; the passive side's device goes: the active side ends with an error in bounded time."""
    with Testbed() as bed:
        port = bed.port()
        common = ["-x", bed.h1.gid_index(bed.h1.ip4), "-p", port, "-F", "-s", 65536, "-n", 1000000, "-u", 12]
        server = bed.h1.start("ib_send_bw", "-d", bed.h1.dev, *common)
        server.wait_listening(port)
        client = bed.h2.start("ib_send_bw", "-d", bed.h2.dev, *common, bed.h1.ip4)
        before = bed.h2.counters()["sent_bytes"]
        wait_until(lambda: bed.h2.counters()["sent_bytes"] > before + 500000, 60, "no traffic")
        bed.h1.delete_link()
        r = client.wait(60)
        assert "completion with error" in r.out or r.rc != 0, r
        server.kill()
        assert bed.h2.dev in rdma_links()


def test_killed_programs_leave_nothing():
    """kill -9 of both ends in mid-traffic, again and again; then the module can go."""
    with Testbed() as bed:
        for round_ in range(5):
            port = bed.port()
            tool = ["ib_write_bw", "ib_read_bw", "ib_send_bw"][round_ % 3]
            common = ["-x", bed.h1.gid_index(bed.h1.ip4), "-p", port, "-F", "-s", 65536, "-n", 1000000, "-q", 8]
            server = bed.h1.start(tool, "-d", bed.h1.dev, *common)
            server.wait_listening(port)
            client = bed.h2.start(tool, "-d", bed.h2.dev, *common, bed.h1.ip4)
            before = bed.h2.counters()["sent_pkts"]
            wait_until(lambda: bed.h2.counters()["sent_pkts"] > before + 200, 60, lambda: f"no traffic: {client.out}")
            for job in ((server, client) if round_ % 2 else (client, server)):
                job.signal(signal.SIGKILL)
            server.kill()
            client.kill()
            for host in bed.hosts:
                left = json.loads(run(["rdma", "-j", "resource", "show", host.dev]).out)[0]
                assert left["mr"] == 0 and left["qp"] <= 1 and left["ctx"] == 0, left
        run(["rmmod", module_of(DRIVER)], timeout=90)
        assert not rdma_links()
