# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""Interoperation with rxe: the client is the driver under test, rxe the server."""

import pytest

from interop import *  # noqa: F403 (the cases)
from interop import PEER
from testbed import DRIVER, Testbed


@pytest.fixture(scope="module")
def bed():
    with Testbed(mtu=4200, kinds=(PEER, DRIVER)) as b:
        yield b
