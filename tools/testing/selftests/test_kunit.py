# SPDX-License-Identifier: GPL-2.0
# guest: timeout=300 smp=2 mem=2048 debug=1
"""The KUnit tests of the abstractions: ferroce_kunit.ko runs them when it is loaded, each of them is a test here."""

import glob
import os
import re

import pytest

from testbed import run

RESULTS = "/sys/kernel/debug/kunit/rdma_*/results"
SOURCES = "/src/drivers/infiniband/rdma/**/*.rs"
CASE = re.compile(r"^\s+(ok|not ok) \d+ (\w+)(?: # (.*))?$", re.M)


def load():
    """(suite, case) -> (ok or not ok, comment, all that the suite printed)."""
    if not glob.glob(RESULTS):
        run(["modprobe", "-a", "ib_core", "udp_tunnel", "ip6_udp_tunnel"], check=False)  # perhaps built in
        run(["insmod", "/build/ferroce_kunit.ko"], timeout=120)
    found = {}
    for path in sorted(glob.glob(RESULTS)):
        with open(path) as f:
            text = f.read()
        suite = os.path.basename(os.path.dirname(path))
        for verdict, case, comment in CASE.findall(text):
            found[suite, case] = verdict, comment, text
    return found


def pytest_generate_tests(metafunc):
    if "result" in metafunc.fixturenames:
        cases = load()
        metafunc.parametrize("result", cases.values(), ids=[f"{suite}-{case}" for suite, case in cases])


def test_kunit(result):
    verdict, comment, text = result
    if (comment or "").startswith("SKIP"):
        pytest.skip(comment)
    assert verdict == "ok", text


def test_all_ran():
    """What stands in the sources and has no result would be missed in silence."""
    wanted = set()
    for path in glob.glob(SOURCES, recursive=True):
        with open(path) as f:
            for part in re.split(r"kunit_tests\(", f.read())[1:]:
                suite = part.split(")")[0]
                wanted |= {(suite, case) for case in re.findall(r"#\[test\]\s+fn (\w+)", part)}
    assert wanted and wanted == set(load())


def test_unload():
    run(["rmmod", "ferroce_kunit"])
    assert not glob.glob(RESULTS)
