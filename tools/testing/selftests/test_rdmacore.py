# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072
"""rdma-core's own tests, as Debian ships them, against a list of what is expected of each.

rdmacore-<driver>.txt has a line for every test: its name, `ok`, `skip` or `fail`, and for the latter two the reason. A
test that fails or is skipped without being expected to is a failure here; so is one that does better than the list, for
then the list is wrong. To write the list anew after a change: RDMACORE_WRITE=/tmp/list pytest test_rdmacore.py.

Tests of what librxe has no function for (NO_FUNCTION) are skipped there; they run once more with a preloaded library that
has these functions.
"""

import glob
import gzip
import json
import os
import shutil
import time

import pytest

from testbed import DRIVER, SCRATCH, Job, Testbed, librxe_ops

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = "/usr/share/doc/rdma-core/tests"
FILES = ["test_addr", "test_atomic", "test_cq", "test_cq_events", "test_cqex", "test_device", "test_flow", "test_fork",
         "test_mr", "test_odp", "test_parent_domain", "test_pd", "test_qp", "test_qpex", "test_rdmacm",
         "test_relaxed_ordering", "test_rss_traffic", "test_shared_pd", "test_srq", "test_tag_matching"]
"""All but those for one kind of adapter (efa, mlx5, CUDA)."""
NO_FUNCTION = [f"test_mr.MRTest.test_mr_rereg_{what}" for what in ("access", "access_bad_flow", "addr", "atomic", "pd")] + [
    f"test_odp.OdpTestCase.test_odp_{what}_rc_traffic" for what in (
        "sync_prefetch", "async_prefetch", "implicit_sync_prefetch", "implicit_async_prefetch",
        "prefetch_sync_no_page_fault", "prefetch_async_no_page_fault")]
LIST = f"{HERE}/rdmacore-{DRIVER}.txt"


def expectations():
    """Test name -> (outcome, reason)."""
    table = {}
    if os.path.exists(LIST):
        with open(LIST) as f:
            for line in f:
                if line.strip() and not line.startswith("#"):
                    name, outcome, *reason = line.split(None, 2)
                    table[name] = outcome, "".join(reason).strip()
    return table


EXPECTED = expectations()


@pytest.fixture(scope="module")
def folder():
    """rdma-core's tests, unpacked."""
    target = f"{SCRATCH}/rdma-core/tests"
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    for path in glob.glob(f"{SOURCE}/*"):
        name = os.path.basename(path)
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "rb") as f, open(f"{target}/{name.removesuffix('.gz')}", "wb") as out:
            out.write(f.read())
    return target


@pytest.fixture(scope="module")
def bed():
    # For the tests of huge pages.
    with open("/proc/sys/vm/nr_hugepages", "w") as f:
        f.write("16")
    with Testbed(mtu=4200) as b:
        yield b


@pytest.fixture(scope="module")
def outcomes(bed, folder):
    """Test name -> (outcome, reason), and what the runs printed.

    A process for each file: some of pyverbs' finalisers end in a segmentation fault, at any time later.
    """
    path, log, end = no_file("outcomes.json"), "", time.monotonic() + 550
    for name in FILES:
        log += run_names(bed, folder, [name], path, max(1, end - time.monotonic()))
    return outcomes_in(path), log


def no_file(name):
    """The place of a file of outcomes, without one of an earlier run."""
    path = f"{SCRATCH}/{name}"
    if os.path.exists(path):
        os.unlink(path)
    return path


def run_names(bed, folder, names, path, seconds, **env):
    """Runs files or tests in one process, which adds their outcomes to a file; returns what it printed."""
    job = Job(["python3", f"{HERE}/rdmacore_run.py", folder, ",".join(names), bed.h1.dev, bed.h1.gid_index(bed.h1.ip4), path],
              ns=bed.h1.ns, env=env)
    try:
        job.wait(seconds)
    except AssertionError:
        pass  # What did not run any more is missed later.
    return job.out


def outcomes_in(path):
    """Test name -> (outcome, reason)."""
    done = {}
    if os.path.exists(path):
        with open(path) as f:
            for name, outcome, why in map(json.loads, f):
                done.setdefault(name, (outcome, why))
    return done


@pytest.fixture(scope="module")
def with_functions(bed, folder):
    """As `outcomes`, of the tests for which librxe has no function."""
    path = no_file("with-functions.json")
    log = run_names(bed, folder, NO_FUNCTION, path, 150, LD_PRELOAD=librxe_ops())
    return outcomes_in(path), log


@pytest.mark.seconds(400)
@pytest.mark.differs_on_rxe("it loses completions when the queue is full")
def test_resize_cq_fifty_times(bed, folder):
    """A completion that is lost when the size changes shows in some runs only."""
    path = no_file("fifty.json")
    case = "test_cq.CQTest.test_resize_cq"
    log = run_names(bed, folder, [case] * 50, path, 350)
    with open(path) as f:
        done = [json.loads(line) for line in f]
    assert done == [[case, "ok", ""]] * 50, log[-3000:]


def pytest_generate_tests(metafunc):
    if "outcomes" in metafunc.fixturenames and "name" in metafunc.fixturenames:
        metafunc.parametrize("name", EXPECTED)


@pytest.mark.seconds(600)
def test_list_is_complete(outcomes):
    """Each of rdma-core's tests is in the list."""
    done, log = outcomes
    if os.environ.get("RDMACORE_WRITE"):
        with open(os.environ["RDMACORE_WRITE"], "w") as f:
            for name, (outcome, why) in done.items():
                lines = why.strip().splitlines()
                f.write(f"{name} {outcome} {lines[-1] if lines else ''}".rstrip() + "\n")
    missing = sorted(set(done) - set(EXPECTED))
    assert done and not missing, "\n".join(missing) or log


@pytest.mark.differs_on_rxe("it registers nothing anew and has no implicit regions")
@pytest.mark.parametrize("name", NO_FUNCTION)
def test_with_the_function(with_functions, name):
    """What librxe lacks is passed to the driver by a preloaded library."""
    done, log = with_functions
    assert done.get(name) == ("ok", ""), f"{done.get(name)}\n{log[-3000:]}"


@pytest.mark.seconds(600)
def test_case(outcomes, name):
    done, log = outcomes
    wanted, reason = EXPECTED[name]
    assert name in done, f"did not run:\n{log[-3000:]}"
    outcome, why = done[name]
    assert outcome == wanted, f"{outcome} instead of {wanted}: {why}"
    if outcome != "ok":
        pytest.skip(f"as expected: {reason}")
