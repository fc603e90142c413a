"""benchmarks/two_stage.py: trains the stages, decodes and scores each, here and on a GPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import two_stage
from multibranch.data.builtin import builtin
from multibranch.decoding import Translator


def test_every_stage_is_trained_and_scored_and_decodes_as_a_gpu_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = builtin("translation", tmp_path / "data", pairs=60, valid=4, test=6, merges=50, jobs=1)
    output, record = tmp_path / "runs", tmp_path / "record.json"
    words = f"--first 0.005 --second 0.005 --continued --device cpu --json {record} --width 16"
    words += " --hidden 16 --layers 1 --tokens 256 --validate-every 2 --length-penalties 1.0"
    monkeypatch.setattr(sys, "argv", ["two_stage.py", str(data), str(output), *words.split()])
    assert two_stage.main() == 0
    stages = json.loads(record.read_text())["stages"]
    assert [stage["name"] for stage in stages] == ["transformer", "mat", "continued"]
    assert all(stage["scores"]["averaged"]["sentences"] == 6 for stage in stages)
    assert stages[1]["branch_similarity"] and not stages[0]["branch_similarity"]

    asked: dict[str, Any] = {}
    load = Translator.load

    def on_a_gpu(folder: Path, **how: Any) -> Translator:
        asked.update(how)
        return load(folder, device="cpu")

    monkeypatch.setattr(Translator, "load", on_a_gpu)
    prepared = two_stage.PreparedData.open(data)
    found = two_stage.decode(output / "mat" / "averaged", prepared, "test", 1.0, "cuda", 6)
    assert asked == {"device": "cuda", "precision": "float16", "cuda_graphs": True}
    assert found[0] == stages[1]["scores"]["averaged"]["test_bleu"]
