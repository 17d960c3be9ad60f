# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 smp=2 mem=2048
"""Kernel verbs as kernel users call them: the cases of tools/testing/kverbs, a module of the tests' own."""

import os
import re

import pytest

from testbed import Testbed, run, wait_until

MODULE = "/build/ferroce_kverbs.ko"
DEBUGFS = "/sys/kernel/debug"
FOLDER = f"{DEBUGFS}/kverbs"
CASES = """contexts contexts_srq contexts_ud chain_freed bad_send full_send bad_recv bad_srq_recv inline_send
    poll_direct poll_softirq poll_workqueue poll_unbound poll_srq handler arming vectors
    dma reg_page_sizes reg_lists reg_keys
    ah_atomic ah_modify srq_limit xrc_target mad_counters
    atomics atomic_write immediate fence""".split()


def read(name):
    with open(f"{FOLDER}/{name}", encoding="ascii") as f:
        return f.read()


@pytest.fixture(scope="module")
def bed():
    if not os.path.isdir(f"{DEBUGFS}/tracing"):
        run(["mount", "-t", "debugfs", "debugfs", DEBUGFS], check=False)
    with Testbed(mtu=4200) as b:
        run(["insmod", MODULE])
        yield b
        run(["rmmod", "ferroce_kverbs"])


def run_case(bed, name):
    """What the case has to say when all is well."""
    try:
        with open(f"{FOLDER}/run", "w", encoding="ascii") as f:
            f.write(f"{name} {bed.h1.dev} {bed.h2.dev}")
    except OSError as why:
        pytest.fail(f"{why}: {read('result')}")
    said = read("result")
    assert said.startswith("ok"), said
    return said.removeprefix("ok").strip()


@pytest.mark.parametrize("name", CASES)
def test_case(bed, name):
    run_case(bed, name)


def test_all_ran(bed):
    """A case that the module has and this file has not would be missed in silence."""
    assert read("cases").split() == CASES


@pytest.mark.differs_on_rxe("rxe's handlers run in its own work items")
@pytest.mark.parametrize("cpu", [0, 1])
def test_handlers_run_where_packets_come_in(bed, cpu):
    """What spreads packets over processors (here RPS) spreads the handlers, whatever the vector."""
    for host in bed.hosts:
        host.run("sh", "-c", f"echo {1 << cpu:x} > /sys/class/net/{host.netdev}/queues/rx-0/rps_cpus")
    try:
        wait_until(lambda: set(re.findall(r"cpus=(\S+)", run_case(bed, "vectors"))) == {str(cpu)}, 60,
                   lambda: f"handlers ran on {run_case(bed, 'vectors')}")
    finally:
        for host in bed.hosts:
            host.run("sh", "-c", f"echo 0 > /sys/class/net/{host.netdev}/queues/rx-0/rps_cpus")
