# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""The stock ibv_rc_pingpong between two hosts: polling and event mode, IPv4 and IPv6, many sizes, data checked."""

import re

import pytest

from testbed import Testbed, counters

SIZES = [1, 2, 3, 5, 31, 256, 1023, 1024, 1025, 4095, 4096, 4097, 8193, 65536, 262147, 1 << 20]


@pytest.fixture(scope="module", params=[1500, 4200], ids=lambda m: f"mtu{m}")
def bed(request):
    with Testbed(mtu=request.param) as b:
        yield b


def pingpong(bed, size, iters, ip=4, events=False, extra=()):
    """One run; both sides print how many bytes they moved."""
    port = bed.port()

    def cmd(host):
        return ["ibv_rc_pingpong", "-d", host.dev, "-g", host.gid_index(host.ip(ip)), "-p", port, "-s", size,
                "-n", iters, "-r", min(iters, 50), "-c", *(["-e"] if events else []), *extra]
    results = bed.pair(cmd(bed.h1), cmd(bed.h2) + [bed.h1.ip4], port)
    for r in results:
        assert re.search(rf"^{size * iters * 2} bytes in ", r.out, re.M), r
        assert "invalid data" not in r.out, r


CASES = [(size, events, ip) for size in SIZES for events, ip in
         [(False, 4), (True, 6)] + ([(False, 6), (True, 4)] if size in (1, 1025, 65536) else [])]


@pytest.mark.parametrize("size, events, ip", CASES, ids=[f"{s}-{'events' if e else 'polling'}-ipv{i}" for s, e, i in CASES])
def test_size(bed, size, events, ip):
    pingpong(bed, size, iters=20 if size <= 65536 else 5, ip=ip, events=events)


@pytest.mark.parametrize("events", [False, True], ids=["polling", "events"])
def test_iterations(bed, events):
    """More messages than the rings have slots, so that every index wraps several times."""
    pingpong(bed, 64, iters=400, events=events)


@pytest.mark.parametrize("ip", [4, 6], ids=["ipv4", "ipv6"])
def test_traffic_leaves_through_the_port(bed, ip):
    """The bytes went over this device's wire. (A retry may happen: a busy emulator pauses longer than the timer.)"""
    before = counters(bed.h1.dev)
    pingpong(bed, 4096, iters=10, ip=ip)
    after = counters(bed.h1.dev)
    assert after["sent_bytes"] - before["sent_bytes"] >= 40960
    assert after["rcvd_bytes"] - before["rcvd_bytes"] >= 40960
    for name in ("retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"):
        assert after[name] == before[name], name


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_path_mtu(bed, mtu):
    """-m asks for a path MTU; above what the link carries, the run fails instead of hanging."""
    if mtu > (1024 if bed.mtu == 1500 else 4096):
        pytest.skip("larger than the link's MTU")
    pingpong(bed, 10001, iters=5, extra=["-m", mtu])
