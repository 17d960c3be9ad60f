# SPDX-License-Identifier: GPL-2.0
"""Moves data between two endpoints and compares every byte that arrives."""

from verbs import OK, all_good, pattern, status_name

SLOTS = 4
"""Messages outstanding at once; each has a quarter of the memory region."""


def transfer(a, b, op, total, sizes, timeout=120):
    """Move total bytes in messages of the given sizes, up to SLOTS outstanding, and compare every byte that arrives."""
    room = a.mr.length // SLOTS
    todo, expected = [], []
    while sum(todo) < total:
        todo.append(sizes[len(todo) % len(sizes)])
    src, dst = (b, a) if op == "read" else (a, b)

    def finish():
        index, size, data = expected.pop(0)
        slot = index % SLOTS * room
        done = a.poll(1, timeout)[0]
        assert (done.wr_id, done.status) == (index, OK), f"message {index}: {status_name(done.status)}"
        if op == "send":
            wc = b.poll(1, timeout)[0]
            assert (wc.wr_id, wc.status, wc.byte_len) == (index, OK, size), f"message {index}: {wc}"
        assert dst.mr.read(size, slot) == data, f"message {index} of {size} bytes arrived changed"

    for index, size in enumerate(todo):
        if len(expected) == SLOTS:
            finish()
        slot = index % SLOTS * room
        data = pattern(size, index)
        src.mr.write(data, size, slot)
        expected.append((index, size, data))
        if op == "send":
            b.recv(slot, room, wr_id=index)
            a.send(slot, size, wr_id=index)
        elif op == "write":
            a.write(slot, size, b.at(slot), wr_id=index)
        else:
            a.read(slot, size, b.at(slot), wr_id=index)
    while expected:
        finish()
    a.nothing(0.05)
    b.nothing(0.05)


def burst(a, b, op, count, size):
    """count messages posted at once, into places of their own; every byte is compared in the end."""
    src, dst = (b, a) if op == "read" else (a, b)
    data = pattern(count * size, f"{op}{count}{size}")
    src.mr.write(data, len(data), 0)
    for i in range(count):
        at = i * size
        if op == "send":
            b.recv(at, size)
            a.send(at, size, wr_id=i)
        elif op == "write":
            a.write(at, size, b.at(at), wr_id=i)
        else:
            a.read(at, size, b.at(at), wr_id=i)
    assert [(w.wr_id, w.status) for w in a.poll(count, 30)] == [(i, OK) for i in range(count)]
    if op == "send":
        all_good(b.poll(count, 30))
    assert dst.mr.read(len(data), 0) == data
