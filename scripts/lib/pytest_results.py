# SPDX-License-Identifier: GPL-2.0
"""pytest plugin: one line for each test, written as it happens.

Lines of /out/results, fields parted by tabs:

    begin  NAME
    ok     NAME  TIME
    FAIL   NAME  TIME (phase, unless it is the test itself)
    skip   NAME  REASON
"""

import os

RESULTS = os.environ.get("PYTEST_RESULTS", "/out/results")


def write(*fields):
    """Append one line, and have it on the host's side before the test goes on."""
    line = "\t".join(str(f).replace("\n", " ").replace("\t", " ") for f in fields)
    with open(RESULTS, "a", encoding="utf-8") as out:
        out.write(line + "\n")


def name(nodeid):
    """tools/testing/selftests/test_x.py::test_y[z] -> test_x.py::test_y[z]"""
    return nodeid.rsplit("/", 1)[-1]


def pytest_runtest_logstart(nodeid):
    write("begin", name(nodeid))


def pytest_runtest_logreport(report):
    time = f"{report.duration:.1f} s"
    if report.skipped:
        # An expected failure is reported as skipped, too.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        write("skip", name(report.nodeid), reason.removeprefix("Skipped: "))
    elif report.failed:
        phase = "" if report.when == "call" else f", in {report.when}"
        write("FAIL", name(report.nodeid), time + phase)
    elif report.when == "call":
        write("ok", name(report.nodeid), time)


def pytest_collectreport(report):
    if report.failed:
        write("FAIL", f"{name(report.nodeid)}: collection", "0 s")
