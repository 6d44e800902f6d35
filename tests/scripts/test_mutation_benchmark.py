"""The mutation benchmark at one place per rule: no finding in correct scripts, 97 % of the defects found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "mutations.py"


def test_own_scripts_are_clean_and_their_mutations_found(tmp_path):
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--sites=1", "--json", str(tmp_path / "results.json")],
        check=False,
        capture_output=True,
        text=True,
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["unmutated_errors"] == []
    missed = [f"{m['operator']} {m['changed']}" for m in results["mutations"] if not m["caught"]]
    assert results["share"] >= 0.97, missed
    assert result.returncode == 0
    assert len(results["mutations"]) > 300


def test_a_corpus_without_mutations_fails_the_benchmark(tmp_path):
    # No mutation applies: no share of nothing is good enough.
    (tmp_path / "train.py").write_text("import smdistributed.modelparallel.torch as smp\n")
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "0 of 0 mutations caught" in result.stdout


def test_two_defects_at_once_are_both_found_in_twelve_styles():
    script = BENCHMARK.parent / "scripts" / "ddp_images.py"
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), str(script), "--combined", "--styles"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
