#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Two ranks of an MPI program: messages of many sizes there and back, many at once, one-sided access; all data compared.
Arguments: for each rank, settings that it gets before MPI starts, as NAME=VALUE;NAME=VALUE."""

import os
import sys
from random import Random

if len(sys.argv) > 1:
    own = sys.argv[1 + int(os.environ["OMPI_COMM_WORLD_RANK"])]
    os.environ.update(setting.split("=", 1) for setting in own.split(";"))

from mpi4py import MPI  # noqa: E402

SIZES = (0, 1, 64, 1000, 8192, 70000, 1 << 20)
AT_ONCE = 20


def pattern(size, seed):
    return Random(seed).randbytes(size)


def there_and_back(comm, peer):
    for n, size in enumerate(SIZES):
        data = pattern(size, n)
        got = bytearray(size)
        if comm.rank == 0:
            comm.Send(data, dest=peer, tag=n)
            comm.Recv(got, source=peer, tag=n)
        else:
            comm.Recv(got, source=peer, tag=n)
            comm.Send(got, dest=peer, tag=n)
        assert got == data, size


def at_once(comm, peer):
    buffers = [bytearray(5000) for _ in range(AT_ONCE)]
    receives = [comm.Irecv(b, source=peer, tag=n) for n, b in enumerate(buffers)]
    sends = [comm.Isend(pattern(5000, n), dest=peer, tag=n) for n in range(AT_ONCE)]
    MPI.Request.Waitall(receives + sends)
    assert buffers == [bytearray(pattern(5000, n)) for n in range(AT_ONCE)]


def one_sided(comm, peer):
    memory = MPI.Win.Allocate(20000, comm=comm)
    memory.Fence()
    memory.Put(pattern(10000, comm.rank), peer)
    memory.Fence()
    got = bytearray(10000)
    memory.Get(got, peer)
    memory.Fence()
    assert got == pattern(10000, comm.rank) and bytes(memory.tomemory()[:10000]) == pattern(10000, peer)
    memory.Free()


if __name__ == "__main__":
    world = MPI.COMM_WORLD
    assert world.size == 2
    for step in (there_and_back, at_once, one_sided):
        step(world, 1 - world.rank)
    assert world.allreduce(world.rank + 1) == 3
    print(f"rank {world.rank} done", flush=True)
