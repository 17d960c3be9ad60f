# SPDX-License-Identifier: GPL-2.0
"""Connections through librdmacm, asynchronously: one thread, one event channel, many connections at a time.

As a program (both print a line of JSON with what came of it):

    rdmacm.py serve ADDRESS PORT COUNT [reject]     answer COUNT requests, then wait until all are closed
    rdmacm.py connect ADDRESS PORT COUNT AT_A_TIME  connect, disconnect, COUNT times, so many at a time

Each request carries a number as private data, and each answer gives it back.
"""

import collections
import ctypes as c
import enum
import json
import os
import select
import socket
import struct
import sys
import time

RDMA_PS_TCP = 0x0106
IBV_QPT_RC = 2


class Event(enum.IntEnum):
    """enum rdma_cm_event_type"""
    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


class ConnParam(c.Structure):
    """struct rdma_conn_param"""
    _fields_ = [("private_data", c.c_void_p), ("private_data_len", c.c_uint8), ("responder_resources", c.c_uint8),
                ("initiator_depth", c.c_uint8), ("flow_control", c.c_uint8), ("retry_count", c.c_uint8),
                ("rnr_retry_count", c.c_uint8), ("srq", c.c_uint8), ("qp_num", c.c_uint32)]


class CmEvent(c.Structure):
    """struct rdma_cm_event"""
    _fields_ = [("id", c.c_void_p), ("listen_id", c.c_void_p), ("event", c.c_int), ("status", c.c_int),
                ("conn", ConnParam)]


class QpInitAttr(c.Structure):
    """struct ibv_qp_init_attr"""
    _fields_ = [("qp_context", c.c_void_p), ("send_cq", c.c_void_p), ("recv_cq", c.c_void_p), ("srq", c.c_void_p),
                ("max_send_wr", c.c_uint32), ("max_recv_wr", c.c_uint32), ("max_send_sge", c.c_uint32),
                ("max_recv_sge", c.c_uint32), ("max_inline_data", c.c_uint32), ("qp_type", c.c_int),
                ("sq_sig_all", c.c_int)]


lib = c.CDLL("librdmacm.so.1", use_errno=True)
lib.rdma_create_event_channel.restype = c.POINTER(c.c_int)


def call(name, *args):
    """Call a function of librdmacm that returns 0 or sets errno."""
    if getattr(lib, name)(*args) != 0:
        err = c.get_errno()
        raise OSError(err, f"{name}: {os.strerror(err)}")


def sockaddr(ip, port):
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    raw = struct.pack("=H", family) + struct.pack(">H", port)
    if family == socket.AF_INET6:
        raw += bytes(4)
    return c.create_string_buffer(raw + socket.inet_pton(family, ip) + bytes(8))


class Channel:
    """An event channel and the identifiers made on it."""

    def __init__(self):
        self.raw = lib.rdma_create_event_channel()
        assert self.raw, os.strerror(c.get_errno())
        self.seen = collections.Counter()

    def create_id(self):
        ident = c.c_void_p()
        call("rdma_create_id", self.raw, c.byref(ident), None, RDMA_PS_TCP)
        return ident.value

    def event(self, timeout=None):
        """The next event: (kind, id, status, private data); None if none comes in time."""
        if timeout is not None and not select.select([self.raw[0]], [], [], timeout)[0]:
            return None
        got = c.POINTER(CmEvent)()
        call("rdma_get_cm_event", self.raw, c.byref(got))
        e = got.contents
        kind = Event(e.event)
        data = b""
        if kind in (Event.CONNECT_REQUEST, Event.ESTABLISHED, Event.REJECTED) and e.conn.private_data:
            data = c.string_at(e.conn.private_data, e.conn.private_data_len)
        answer = kind, e.id, e.status, data
        self.seen[kind.name] += 1
        call("rdma_ack_cm_event", got)
        return answer


def create_qp(ident):
    attr = QpInitAttr(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, qp_type=IBV_QPT_RC)
    call("rdma_create_qp", c.c_void_p(ident), None, c.byref(attr))


def with_data(function, ident, data):
    """rdma_connect or rdma_accept."""
    buffer = c.create_string_buffer(data, len(data))
    param = ConnParam(c.cast(buffer, c.c_void_p), len(data), 1, 1, 0, 7, 7)
    call(function, c.c_void_p(ident), c.byref(param))


def destroy(ident, qp=True):
    if qp:
        lib.rdma_destroy_qp(c.c_void_p(ident))
    call("rdma_destroy_id", c.c_void_p(ident))


def number_of(data):
    return struct.unpack_from(">I", data)[0]


def serve(ip, port, count, reject=False):
    channel = Channel()
    listener = channel.create_id()
    call("rdma_bind_addr", c.c_void_p(listener), sockaddr(ip, port))
    call("rdma_listen", c.c_void_p(listener), 128)
    alive, answered = set(), 0
    while answered < count or alive:
        kind, ident, _, data = channel.event()
        if kind == Event.CONNECT_REQUEST:
            answered += 1
            if reject:
                call("rdma_reject", c.c_void_p(ident), data[:4], 4)
                destroy(ident, qp=False)
                continue
            create_qp(ident)
            with_data("rdma_accept", ident, data[:4])
            alive.add(ident)
        elif kind == Event.DISCONNECTED:
            call("rdma_disconnect", c.c_void_p(ident))
            destroy(ident)
            alive.discard(ident)
        elif kind in (Event.CONNECT_ERROR, Event.UNREACHABLE, Event.REJECTED) and ident in alive:
            destroy(ident)
            alive.discard(ident)
        elif kind == Event.DEVICE_REMOVAL:
            break
    for ident in alive:
        destroy(ident)
    destroy(listener, qp=False)
    return channel.seen


def connect(ip, port, count, at_a_time):
    """Returns the events, and the statuses of what failed."""
    channel = Channel()
    numbers, begun, done, failed = {}, 0, 0, collections.Counter()
    most, since = 0, time.monotonic()
    while done < count:
        while begun < count and len(numbers) < at_a_time:
            ident = channel.create_id()
            numbers[ident] = begun
            begun += 1
            call("rdma_resolve_addr", c.c_void_p(ident), None, sockaddr(ip, port), 10000)
        most = max(most, len(numbers))
        kind, ident, status, data = channel.event()
        if kind == Event.ADDR_RESOLVED:
            call("rdma_resolve_route", c.c_void_p(ident), 10000)
        elif kind == Event.ROUTE_RESOLVED:
            create_qp(ident)
            with_data("rdma_connect", ident, struct.pack(">I", numbers[ident]))
        elif kind == Event.ESTABLISHED:
            assert number_of(data) == numbers[ident], "the answer to another request"
            call("rdma_disconnect", c.c_void_p(ident))
        elif kind == Event.TIMEWAIT_EXIT:
            pass
        else:
            if kind == Event.REJECTED and len(data) >= 4 and status == 28:
                assert number_of(data) == numbers[ident], "the answer to another request"
            if kind != Event.DISCONNECTED:
                failed[f"{kind.name} {status}"] += 1
            del numbers[ident]
            destroy(ident, qp=kind not in (Event.ADDR_ERROR, Event.ROUTE_ERROR))
            done += 1
    return {"failed": failed, "most": most, "seconds": time.monotonic() - since, **channel.seen}


if __name__ == "__main__":
    mode, host, service, *rest = sys.argv[1:]
    if mode == "serve":
        told = serve(host, int(service), int(rest[0]), rest[1:] == ["reject"])
    else:
        told = connect(host, int(service), int(rest[0]), int(rest[1]))
    print(json.dumps(told), flush=True)
    # Without librdmacm's own end: it would wait for connections in TimeWait.
    os._exit(0)
