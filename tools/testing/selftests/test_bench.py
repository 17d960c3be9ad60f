# SPDX-License-Identifier: GPL-2.0
# guest: timeout=900 mem=3072 debug=0
# figures of a kernel that checks everything say nothing
"""The bench: its rows give figures and its plots are drawn, with as little work as there can be."""

import json
import os
import sys

import pytest

from testbed import DRIVER, run

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench")
sys.path.insert(0, BENCH)
from rows import ROWS  # noqa: E402


@pytest.mark.seconds(800)
def test_all_rows(tmp_path):
    """Whatever they are, as with so little work memory may have become less; but for those that take long by their nature."""
    rows = [row for row in ROWS if not row.heavy]
    res = run(["python3", f"{BENCH}/bench.py", str(tmp_path), "--kinds", DRIVER, "--scale", "0.01", "--runs", "1"], timeout=700)
    results = {r["work"]: r["figures"] for r in json.loads((tmp_path / "results.json").read_text())}
    missing = [(row.name, kind) for row in rows for kind in row.kinds if kind in (DRIVER, "tcp", "alone")
               and not results.get(row.name, {}).get(kind)]
    assert not missing, str(res)
    assert {p.name for p in tmp_path.glob("*.svg")} == {"per-byte.svg", "per-message.svg"}
    table = (tmp_path / "table.md").read_text().splitlines()
    assert len(table) == len(rows) + 2
