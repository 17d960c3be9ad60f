# SPDX-License-Identifier: GPL-2.0
# guest: timeout=600 mem=2048
"""A device comes and goes by `rdma link`, tells the truth about itself, and refuses what cannot be."""

import contextlib
import json
import os
import re

import pytest

from kmsg import Kmsg
from testbed import (DRIVER, ROCE_PORT, Testbed, counters, gid_of, gids, module_loaded, module_of, modules, rdma_links,
                     run, sysfs, wait_until)

RXE = DRIVER == "rxe"


@pytest.fixture(scope="module")
def bed():
    """Two hosts without a link; each test makes its own."""
    with Testbed(mtu=4200, links=False) as b:
        yield b


@pytest.fixture
def h(bed):
    """h1; whatever links the test makes are deleted after it."""
    yield bed.h1
    for dev in rdma_links():
        run(["rdma", "link", "delete", dev])


@pytest.fixture
def linked(h):
    h.add_link()
    h.gid_index(h.ip4)
    return h


def devinfo(dev):
    """`ibv_devinfo -v` as a dictionary of its single values, and the whole text."""
    text = run(["ibv_devinfo", "-v", "-d", dev]).out
    return dict(re.findall(r"^\s*(\w+):\s+(.*?)\s*$", text, re.M)), text


def eui64(mac):
    b = bytes.fromhex(mac.replace(":", ""))
    raw = bytes([b[0] ^ 2]) + b[1:3] + b"\xff\xfe" + b[3:]
    return ":".join(raw[i:i + 2].hex() for i in range(0, 8, 2))


# Coming and going.

def test_autoload(h):
    """`rdma link add` alone loads the module."""
    run(["modprobe", "-r", module_of(DRIVER)], check=False)
    wait_until(lambda: not module_loaded(DRIVER), 30, "the module is not unloaded")
    h.add_link()
    assert module_loaded(DRIVER)
    assert h.dev in rdma_links()


def test_link_show(linked):
    link = linked.link()
    assert (link["port"], link["state"], link["physical_state"], link["netdev"]) == (
        1, "ACTIVE", "LINK_UP", linked.netdev), link
    dev = json.loads(run(["rdma", "-j", "dev", "show", linked.dev]).out)[0]
    assert dev["node_type"] == "ca"
    assert dev["node_guid"] == dev["sys_image_guid"] == eui64(linked.mac())


def test_registration_is_quiet(h):
    """Neither an error nor a warning in the log, by the MAD layer for one."""
    log = Kmsg()
    h.add_link()
    h.gid_index(h.ip4)
    h.delete_link()
    noise = [text for level, text in log.records() if level <= 4 and "taints kernel" not in text]
    log.close()
    assert not noise, "\n".join(noise)


def test_delete(linked):
    linked.delete_link()
    assert linked.dev not in rdma_links()
    assert linked.udp_sockets() == 0
    wait_until(lambda: modules()[module_of(DRIVER)] == 0, 10, lambda: f"module in use: {modules()}")


def test_module_unload_takes_the_links(linked):
    run(["rmmod", module_of(DRIVER)])
    assert linked.dev not in rdma_links()
    assert linked.udp_sockets() == 0


def test_rename(linked):
    run(["rdma", "dev", "set", linked.dev, "name", "other0"])
    assert "other0" in rdma_links() and linked.dev not in rdma_links()
    assert run(["ibv_devinfo", "-d", "other0"]).rc == 0
    linked.delete_link("other0")


# Refusals.

def refused(host, *errors, **kw):
    """An addition that must fail with one of these messages, and leave nothing behind."""
    before = rdma_links(), host.udp_sockets(), modules().get(module_of(DRIVER))
    r = host.add_link(check=False, **kw)
    assert r.rc != 0, f"was accepted: {r}"
    assert any(e.lower() in r.out.lower() for e in errors), f"{r}\ninstead of {errors}"
    assert (rdma_links(), host.udp_sockets(), modules().get(module_of(DRIVER))) == before, r


def test_unknown_netdev(h):
    run(["modprobe", module_of(DRIVER)])
    refused(h, "No such device", "Cannot find device", "Invalid argument", netdev="nosuch0")


def test_unknown_type(h):
    refused(h, "not supported", "Invalid argument", "No such", kind="nosuchtype")


def test_netdev_used_twice(linked):
    refused(linked, "File exists", dev="second0")
    assert counters(linked.dev) is not None


def test_name_taken(bed, linked):
    refused(bed.h2, "File exists", "Too many open files", dev=linked.dev)  # ENFILE is what ib_core has for it.


def test_name_too_long(h):
    refused(h, "Invalid argument", "too long", "out of range", dev="n" * 80)


def test_vlan_device(h):
    """A VLAN's addresses are served by the device of its parent, so it gets none of its own."""
    h.run("ip", "link", "add", "link", h.netdev, "name", "vlan5", "type", "vlan", "id", "5")
    try:
        h.run("ip", "link", "set", "vlan5", "up")
        refused(h, "Operation not permitted", "Operation not supported", "Invalid argument", netdev="vlan5")
    finally:
        h.run("ip", "link", "delete", "vlan5")


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_port_taken(h, family):
    """Somebody else has the RoCE port in this namespace: the link fails, says why, and comes once the port is free."""
    run(["modprobe", module_of(DRIVER)])
    script = ("import socket,sys,time;s=socket.socket(socket.{},socket.SOCK_DGRAM);{}"
              "s.bind(('',{}));print('bound',flush=True);time.sleep(600)").format(
        "AF_INET6" if family == "ipv6" else "AF_INET",
        "s.setsockopt(socket.IPPROTO_IPV6,socket.IPV6_V6ONLY,1);" if family == "ipv6" else "", ROCE_PORT)
    job = h.start("python3", "-c", script)
    job.wait_for("bound")
    if RXE:
        refused(h, "")
    else:
        refused(h, "Address already in use")
    job.kill()
    h.add_link()
    assert h.udp_sockets() == 2


@pytest.mark.skipif(RXE, reason="counts no packets that are too short")
def test_an_address_that_is_gone_gets_nothing(bed, linked):
    """However many packets came to it before: what is known of their route is forgotten."""
    address = "10.0.0.9"
    script = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); " \
        f"[s.sendto(b'x', (to, {ROCE_PORT})) for to in sys.argv[1:]]"

    def taken():
        """How many of three; one to another address, behind them, says that they are through."""
        before = linked.counters()["drop_bad_length"]
        bed.h2.run("python3", "-c", script, address, address, address, linked.ip4)
        wait_until(lambda: linked.counters()["drop_bad_length"] > before, 10, "nothing arrives")
        return linked.counters()["drop_bad_length"] - before - 1

    bed.h2.run("ip", "neigh", "replace", address, "lladdr", linked.mac(), "dev", bed.h2.netdev)
    for _ in range(2):
        linked.run("ip", "addr", "add", f"{address}/32", "dev", linked.netdev)
        assert (taken(), taken()) == (3, 3)
        linked.run("ip", "addr", "del", f"{address}/32", "dev", linked.netdev)
        assert taken() == 0
    bed.h2.run("ip", "neigh", "del", address, "dev", bed.h2.netdev)


def test_other_namespaces_have_their_own_port(bed, linked):
    bed.h2.add_link()
    assert linked.udp_sockets() == 2 and bed.h2.udp_sockets() == 2


@pytest.mark.skipif(RXE, reason="needs two different drivers")
def test_other_driver_has_the_port(bed, linked):
    """rxe in the same namespace finds the port taken, and the other way round."""
    linked.run("ip", "link", "add", "spare1", "type", "dummy")
    try:
        linked.run("ip", "link", "set", "spare1", "up")
        r = linked.add_link(dev="rxe9", kind="rxe", netdev="spare1", check=False)
        assert r.rc != 0, r
        linked.delete_link()
        linked.add_link(dev="rxe9", kind="rxe", netdev="spare1")
        refused(linked, "Address already in use")
        linked.delete_link("rxe9")
        linked.add_link()
    finally:
        linked.run("ip", "link", "delete", "spare1")


@pytest.mark.skipif(RXE, reason="needs two different drivers")
def test_other_driver_leaves_the_device_alone(bed, linked):
    """rxe has the same driver number, by which it looks for its devices on a netdev: it must not find ours, whose memory it would
    write to. It says in its debug messages what it found."""
    control = "/proc/dynamic_debug/control"
    if not os.path.exists(control):
        pytest.skip("a kernel without dynamic debug messages")
    run(["modprobe", "rdma_rxe"])
    bed.h2.add_link(dev="rxe9", kind="rxe")
    log = Kmsg()

    def debug(flag):
        with open(control, "w", encoding="ascii") as f:
            f.write(f"module rdma_rxe {flag}p")
    debug("+")
    try:
        for mtu in ("4100", "4200"):
            for host in bed.hosts:
                host.run("ip", "link", "set", host.netdev, "mtu", mtu)
    finally:
        debug("-")
    said = [text for _, text in log.records() if "changed mtu" in text]
    log.close()
    assert [text for text in said if "rxe9" in text], "rxe did not say what it does with its own device"
    assert not [text for text in said if re.search(rf"\b{linked.dev}\b", text)], said


def test_second_link_shares_the_port(linked):
    """Two devices in one namespace use one pair of sockets, and the last one to go closes it."""
    linked.run("ip", "link", "add", "spare1", "type", "dummy")
    linked.run("ip", "link", "set", "spare1", "up")
    try:
        linked.add_link(dev="spare", netdev="spare1")
        assert linked.udp_sockets() == 2
        linked.delete_link()
        assert linked.udp_sockets() == 2 and "spare" in rdma_links()
        linked.delete_link("spare")
        assert linked.udp_sockets() == 0
    finally:
        linked.run("ip", "link", "delete", "spare1")


@pytest.mark.parametrize("kind", ["dummy", "bridge", "macvlan", "tun", "bond"])
def test_kinds_of_netdev(h, kind):
    """Any network interface that carries IP will do."""
    run(["modprobe", {"bond": "bonding"}.get(kind, kind)])
    add = {"dummy": ["ip", "link", "add", "n1", "type", "dummy"], "bridge": ["ip", "link", "add", "n1", "type", "bridge"],
           "bond": ["ip", "link", "add", "n1", "type", "bond"],
           "macvlan": ["ip", "link", "add", "link", h.netdev, "name", "n1", "type", "macvlan"],
           "tun": ["ip", "tuntap", "add", "n1", "mode", "tun"]}[kind]
    if kind == "tun":
        wait_until(lambda: os.path.exists("/dev/net/tun"), 10, "no /dev/net/tun")
    h.run(*add)
    try:
        h.run("ip", "link", "set", "n1", "up")
        h.run("ip", "addr", "add", "10.9.0.1/24", "dev", "n1")
        h.add_link(dev="any0", netdev="n1")
        info, _ = devinfo("any0")
        assert info["node_guid"] != "0000:0000:0000:0000"
        wait_until(lambda: gid_of("10.9.0.1") in gids("any0").values(), 30, lambda: f"{gids('any0')}")
        h.delete_link("any0")
    finally:
        h.run("ip", "link", "delete", "n1")


# What it says about itself.

def test_devinfo(linked):
    info, text = devinfo(linked.dev)
    assert info["node_guid"] == info["sys_image_guid"] == eui64(linked.mac())
    assert info["transport"] == "InfiniBand (0)"
    assert info["link_layer"] == "Ethernet"
    assert info["state"] == "PORT_ACTIVE (4)"
    assert info["phys_state"] == "LINK_UP (5)"
    assert info["active_mtu"] == "4096 (5)" and info["max_mtu"] == "4096 (5)"
    assert info["phys_port_cnt"] == "1"
    for name in ("max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom",
                 "max_qp_init_rd_atom"):
        assert int(info[name]) > 0, name
    assert int(info["max_sge"]) >= 32
    assert int(info["max_mr_size"], 16) >= 1 << 40
    assert int(info["max_msg_sz"], 16) == 1 << 31
    assert int(info["gid_tbl_len"]) >= 16
    assert "Couldn't" not in text and "Failed" not in text and "arning" not in text
    listed = run(["ibv_devices"]).out
    assert listed.count(linked.dev) == 1 and "arning" not in listed, listed


def test_sysfs(linked):
    """What programs look for there: the user space half by its version, the interface by its name, in one place."""
    node, = (n for n in os.listdir("/sys/class/infiniband_verbs") if n.startswith("uverbs")
             and open(f"/sys/class/infiniband_verbs/{n}/ibdev").read().strip() == linked.dev)
    assert open(f"/sys/class/infiniband_verbs/{node}/abi_version").read().strip() == "2"
    assert "/devices/virtual/" in os.path.realpath(f"/sys/class/infiniband/{linked.dev}")
    assert sysfs(linked.dev, "node_type") == "1: CA"
    assert re.match(r"[0-9.]+ Gb/sec \(\d+X [A-Z0-9]+\)", sysfs(linked.dev, "ports/1/rate"))
    assert linked.run("cat", f"/sys/class/infiniband/{linked.dev}/parent").out.strip() == linked.netdev


def test_pkey_table(linked):
    assert sysfs(linked.dev, "ports/1/pkeys/0") == "0xffff"


def test_gid_table(linked):
    """One GID for each address of the netdev, of type RoCE v2, as addresses come and go."""
    index = linked.gid_index(linked.ip4)
    assert sysfs(linked.dev, f"ports/1/gid_attrs/types/{index}") == "RoCE v2"
    assert sysfs(linked.dev, f"ports/1/gid_attrs/ndevs/{index}") == linked.netdev
    linked.gid_index(linked.ip6)
    assert sum(g.startswith("fe80") for g in gids(linked.dev).values()) == 1
    for address, plain in (("192.0.2.7/24", "192.0.2.7"), ("2001:db8::7/64", "2001:db8::7")):
        linked.run("ip", "addr", "add", address, "dev", linked.netdev, *(["nodad"] if ":" in address else []))
        linked.gid_index(plain)
        linked.run("ip", "addr", "delete", address, "dev", linked.netdev)
        wait_until(lambda: gid_of(plain) not in gids(linked.dev).values(), 30, f"the GID of {plain} stays")


@pytest.mark.parametrize("mtu, roce", [(1280, "1024 (3)"), (1500, "1024 (3)"), (2200, "2048 (4)"), (4200, "4096 (5)"),
                                       (9000, "4096 (5)"), (600, "512 (2)"), (400, "256 (1)"),
                                       # 88 bytes of headers: IPv6, UDP, the longest before payload, and the ICRC.
                                       (4184, "4096 (5)"), (4183, "2048 (4)")])
def test_mtu_follows_the_netdev(bed, linked, mtu, roce):
    try:
        for host in bed.hosts:
            host.run("ip", "link", "set", host.netdev, "mtu", str(mtu))
        wait_until(lambda: devinfo(linked.dev)[0]["active_mtu"] == roce, 20,
                   lambda: f"{devinfo(linked.dev)[0]['active_mtu']} at mtu {mtu}", step=0.2)
    finally:
        for host in bed.hosts:
            host.run("ip", "link", "set", host.netdev, "mtu", "4200")
            host.run("ip", "addr", "replace", f"{host.ip6}/64", "dev", host.netdev, "nodad")


def test_state_follows_the_netdev(bed, linked):
    """Down by hand and by a peer that is gone; up again; and a link on a netdev that is down starts down."""
    def becomes(state):
        wait_until(lambda: state in sysfs(linked.dev, "ports/1/state"), 20,
                   lambda: f"{sysfs(linked.dev, 'ports/1/state')} instead of {state}")
    before = counters(linked.dev).get("link_downed", 0)
    for host in (linked, bed.h2):
        host.run("ip", "link", "set", host.netdev, "down")
        becomes("DOWN")
        host.run("ip", "link", "set", host.netdev, "up")
        becomes("ACTIVE")
    downs = counters(linked.dev)["link_downed"]
    assert downs > before
    assert int(sysfs(linked.dev, "ports/1/counters/link_downed")) == downs
    linked.delete_link()
    linked.run("ip", "link", "set", linked.netdev, "down")
    linked.add_link()
    becomes("DOWN")
    linked.run("ip", "link", "set", linked.netdev, "up")
    becomes("ACTIVE")
    linked.run("ip", "addr", "replace", f"{linked.ip6}/64", "dev", linked.netdev, "nodad")


def test_netdev_rename(linked):
    """The netdev may be renamed under its device."""
    linked.run("ip", "link", "set", linked.netdev, "down")
    linked.run("ip", "link", "set", linked.netdev, "name", "renamed0")
    try:
        assert linked.link()["netdev"] == "renamed0"
    finally:
        linked.run("ip", "link", "set", "renamed0", "name", linked.netdev)
        linked.run("ip", "link", "set", linked.netdev, "up")
        linked.run("ip", "addr", "replace", f"{linked.ip6}/64", "dev", linked.netdev, "nodad")


RXE_COUNTERS = {"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err",
                "rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
                "send_err", "link_downed", "rdma_sends", "rdma_recvs", "sent_bytes", "rcvd_bytes"}


def test_counters(linked):
    """Those of rxe are there under the same names, in sysfs and by `rdma statistic`."""
    names = set(counters(linked.dev))
    assert names >= (RXE_COUNTERS if RXE else RXE_COUNTERS - {"ack_deferred"}), RXE_COUNTERS - names
    shown = json.loads(run(["rdma", "-j", "statistic", "show", "link", f"{linked.dev}/1"]).out)[0]
    assert set(shown) >= names


@pytest.mark.differs_on_rxe("numbers start at 16 on each device")
def test_qp_numbers(h):
    """A number that was given back comes round again late, and no two lives of a device begin with the same ones."""
    from verbs import Endpoint
    starts = []
    for _ in range(3):
        h.add_link()
        h.gid_index(h.ip4)
        end = Endpoint(h.dev)
        seen = [end.qp.qp_num]
        for _ in range(40):
            with contextlib.closing(Endpoint(h.dev, share=end)) as other:
                seen.append(other.qp.qp_num)
        end.close()
        assert len(set(seen)) == 41, f"used again: {seen}"
        assert all(16 <= n < 0xffffff for n in seen), seen
        starts.append(seen[0])
        h.delete_link()
    assert len({n >> 6 for n in starts}) == 3, starts


def test_resource_show(linked):
    """What a program opens is counted, and counted off when it ends."""
    def summary():
        return json.loads(run(["rdma", "-j", "resource", "show", linked.dev]).out)[0]
    idle = summary()
    from verbs import Endpoint
    end = Endpoint(linked.dev)
    busy = summary()
    assert [busy[k] - idle[k] for k in ("pd", "cq", "qp", "mr", "ctx")] == [1, 1, 1, 1, 1], (idle, busy)
    def qps():
        return json.loads(run(["rdma", "-j", "resource", "show", "qp"]).out)

    def mine():
        return [(q["type"], q["state"]) for q in qps() if q["lqpn"] == end.qp.qp_num]
    # rdma(8) now and then shows a part of the list only, with rxe as well.
    assert wait_until(mine, 20, lambda: f"not listed: {qps()}") == [("RC", "RESET")]
    assert any(q["type"] == "GSI" for q in qps()), "the MAD layer has no GSI queue pair"
    end.close()
    assert summary() == idle


def test_same_name_again(h):
    """Ten times the same name, each time a working device."""
    for _ in range(10):
        h.add_link()
        info, _ = devinfo(h.dev)
        assert info["state"] == "PORT_ACTIVE (4)" and info["link_layer"] == "Ethernet"
        h.delete_link()


def test_udp_port_is_a_socket_of_the_namespace(linked):
    """A datagram that is no RoCE packet does no harm and comes to nothing."""
    before = counters(linked.dev)["rcvd_pkts"]
    script = (f"import socket;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);"
              f"[s.sendto(b'x'*n,('{linked.ip4}',{ROCE_PORT})) for n in range(0,200)]")
    linked.run("python3", "-c", script)
    assert counters(linked.dev)["rcvd_pkts"] == before
