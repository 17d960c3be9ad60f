# SPDX-License-Identifier: GPL-2.0
"""Every test: nothing bad in the kernel's log, no process left, and an end to each wait.

The tests run as root in a guest with the module installed. FERROCE_TYPE names the driver under test, so that the
same files run against the in-kernel rxe.
"""

import signal

import pytest

import testbed
from kmsg import Kmsg, complaints

# What fails in these says why, as in a test file.
pytest.register_assert_rewrite("interop", "perftest", "transfer")

TEST_SECONDS = 300


def pytest_configure(config):
    config.addinivalue_line("markers", "seconds(n): the longest that this test may take")
    config.addinivalue_line("markers", "not_on_debug(reason): makes no sense on the debug kernel, or takes too long there")
    config.addinivalue_line("markers", "differs_on_rxe(reason): what ferroce does by the standard and rxe does not")


def pytest_collection_modifyitems(items):
    if testbed.KERNEL == "debug":
        for item in items:
            mark = item.get_closest_marker("not_on_debug")
            if mark:
                item.add_marker(pytest.mark.skip(reason="not on the debug kernel: " + mark.args[0]))
    if testbed.DRIVER == "ferroce":
        return
    for item in items:
        mark = item.get_closest_marker("differs_on_rxe")
        if mark:
            item.add_marker(pytest.mark.xfail(reason=mark.args[0], strict=False))


@pytest.fixture(scope="module")
def bed():
    """Two hosts with a link each, for all tests of a file that has no bed of its own."""
    with testbed.Testbed(mtu=4200) as b:
        yield b


@pytest.fixture
def ends(bed, request):
    """A queue pair on each host, connected as NO_TIMER of the file says. A file may have ends of its own."""
    from verbs import pair  # Takes long to load, and not all files need it.
    with pair(bed.h1.dev, bed.h2.dev, connect=request.module.NO_TIMER) as p:
        yield p


@pytest.fixture(autouse=True)
def bounded(request):
    """An alarm for whatever has no time limit of its own."""
    mark = request.node.get_closest_marker("seconds")
    seconds = (mark.args[0] if mark else TEST_SECONDS) * testbed.SLOW

    def ring(*_):
        raise TimeoutError(f"the test took more than {seconds} s")
    old = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture(autouse=True)
def quiet_kernel():
    """Fail on any warning, oops or lockdep report that the test provoked; end the programs that it left."""
    log = Kmsg()
    yield log
    testbed.kill_all()
    bad = complaints(log.records())
    log.close()
    assert not bad, "the kernel complained:\n" + "\n".join(bad)
