"""The same sums in the same order."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multibranch.training.determinism import deterministic


def test_what_was_set_before_is_set_again() -> None:
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == filled


def test_runs_beside_each_other_end_in_any_order() -> None:
    one, other = deterministic(True), deterministic(True)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert torch.are_deterministic_algorithms_enabled()
    other.__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_asks_for_it_from_its_set_up_to_its_end(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    asked: list[bool] = []

    def score(model: torch.nn.Module) -> tuple[float, str]:
        asked.append(torch.are_deterministic_algorithms_enabled())
        return 1.0, "score"

    for wanted in (False, True):
        output = tmp_path / str(wanted)
        settings = {"max_updates": 4, "validate_every": 4, "validate_score": True}
        tiny.run(toy, output, score=score, deterministic=wanted, **settings)
    assert asked == [False, True]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_runs_on_a_gpu_are_one(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    weights = []
    for name in ("one", "other"):
        settings = {"device": "cuda", "max_updates": 20, "drop_branch": 0.3}
        tiny.run(toy, tmp_path / name, deterministic=True, **settings)
        weights.append((tmp_path / name / "last" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
