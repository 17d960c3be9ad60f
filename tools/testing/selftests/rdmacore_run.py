# SPDX-License-Identifier: GPL-2.0
"""Runs files of rdma-core's own tests and writes each outcome as a line of JSON, as soon as it is known.

    rdmacore_run.py TESTS_FOLDER FILE[,FILE...] DEV GID OUTPUT
"""

import json
import os
import sys
import unittest

folder, modules, dev, gid, output = sys.argv[1:]
sys.path[:0] = [folder, os.path.dirname(folder)]
sys.argv[1:] = ["--dev", dev, "--port", "1", "--gid", gid]

from args_parser import parser  # noqa: E402

parser.parse_args()


class Outcomes(unittest.TextTestResult):
    """Tells of each test: ok, skip with its reason, or fail with the trace."""

    def tell(self, test, outcome, why=""):
        with open(output, "a") as f:
            f.write(json.dumps([test.id().removeprefix("tests."), outcome, str(why)]) + "\n")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.tell(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell(test, "skip", reason)

    def addError(self, test, err):
        super().addError(test, err)
        self.tell(test, "fail", self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell(test, "fail", self.failures[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.tell(test, "fail", f"{subtest}: {err[1]}")


suite = unittest.defaultTestLoader.loadTestsFromNames([f"tests.{m}" for m in modules.split(",")])
unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(suite)
sys.stdout.flush()
# pyverbs' finalisers have nothing to say about the driver.
os._exit(0)
