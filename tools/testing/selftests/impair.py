# SPDX-License-Identifier: GPL-2.0
"""Spoils the wire between the hosts: loss, reordering and duplication by chance, one packet of a kind, short queues."""

import contextlib
import json

from testbed import run

NETEM = "limit 20000 delay 300us reorder 2% loss 1% duplicate 1%"


def _tc(host, *words):
    return run(["tc", "-n", host.ns, *words])


@contextlib.contextmanager
def qdisc(hosts, words):
    """A root qdisc on the netdev of each host."""
    for h in hosts:
        _tc(h, "qdisc", "replace", "dev", h.netdev, "root", *words.split())
    try:
        yield
    finally:
        for h in hosts:
            _tc(h, "qdisc", "delete", "dev", h.netdev, "root")


def lossy(bed, words=NETEM):
    """Both directions behind netem."""
    return qdisc(bed.hosts, "netem " + words)


def short_queue(bed):
    """An egress queue with room for a few packets in front of a slow wire; what does not fit is refused."""
    return qdisc(bed.hosts, "tbf rate 300mbit burst 10000 limit 30000")


def dropped(host):
    """Packets that the qdisc of a host has dropped so far."""
    return json.loads(run(["tc", "-n", host.ns, "-j", "-s", "qdisc", "show", "dev", host.netdev]).out)[0]["drops"]


@contextlib.contextmanager
def single_packets():
    """Between the hosts, each packet is a buffer of its own: by default many travel in one."""
    def each(state):
        for n in (1, 2):
            run(["ip", "netns", "exec", f"h{n}", "ethtool", "-K", f"v{n}", "tx-udp-segmentation", state])
    each("off")
    try:
        yield
    finally:
        each("on")


@contextlib.contextmanager
def drop_every(host, opcode, n, ip=4):
    """Of the packets with one BTH opcode that reach a host, drop every n-th. Yields a function: how many so far."""
    _tc(host, "qdisc", "add", "dev", host.netdev, "ingress")
    protocol, at = ("ip", 28) if ip == 4 else ("ipv6", 48)
    _tc(host, "filter", "add", "dev", host.netdev, "ingress", "protocol", protocol, "u32", "match", "u8", hex(opcode),
        "0xff", "at", str(at), "action", "pass", "random", "determ", "drop", str(n))

    def lost():
        filters = json.loads(_tc(host, "-j", "-s", "filter", "show", "dev", host.netdev, "ingress").out)
        return sum(a["stats"]["drops"] for f in filters for a in f.get("options", {}).get("actions", []))
    try:
        with single_packets():
            yield lost
    finally:
        _tc(host, "qdisc", "delete", "dev", host.netdev, "ingress")
