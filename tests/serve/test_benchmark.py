"""benchmarks/serving.py runs as it is described."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "serving.py"


@pytest.mark.slow
def test_the_benchmark_reports_latency_errors_and_memory(folder, tmp_path):
    (tmp_path / "lines").write_text("Der Mann läuft.\nEin Hund sieht die Frau.\n", encoding="utf-8")
    command = [sys.executable, SCRIPT, "--model", folder, "--source", tmp_path / "lines"]
    command += ["--seconds", "1.5", "--clients", "1", "8", "--json", tmp_path / "result.json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert [row["clients"] for row in result["clients"]] == [1, 8]
    for row in result["clients"]:
        assert row["errors"] == {}
        assert row["answered"] > 0
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["longest_ms"]
        assert row["memory_last_mb"] > 50
    assert result["sentences_a_batch"] > 1
    assert result["exit_status"] == 0
