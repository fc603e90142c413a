"""A trial: what its model is decoded with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from multibranch.errors import UserError
from multibranch.study.bench import Bench
from multibranch.study.plan import choose, load_study
from multibranch.study.trial import run_trial
from multibranch.study.trial_folder import RECORD, tidy


def bench_of(file: Path, output: Path, *, same: bool) -> Bench:
    study = load_study(str(file))
    study.length_penalties, study.same_length_penalty = [0.0, 1.0], same
    return Bench(study, output, device="cpu")


@pytest.mark.parametrize("same", [True, False])
def test_a_model_takes_the_length_penalty_of_the_one_it_started_from(
    write_study: Callable[..., Path], tmp_path: Path, same: bool
) -> None:
    bench = bench_of(write_study(), tmp_path / "out", same=same)
    baseline, mat = choose(bench.study.experiments(), ["proximal.2-16-16.m4.l1+1.r0.3.s1"])
    first = run_trial(bench, baseline)
    assert list(first["valid_bleu"]) == ["0", "1"]
    # Whatever was best for the one, and be it none of those that are tried.
    place = bench.folder(baseline) / RECORD
    place.write_text(json.dumps({**first, "length_penalty": 2.5}), encoding="utf-8")
    second = run_trial(bench, mat)
    assert list(second["valid_bleu"]) == (["2.5"] if same else ["0", "1"])
    assert 0 <= second["valid_brevity_penalty"] <= 1
    if same:
        assert second["length_penalty"] == 2.5


def test_discarding_a_model_leaves_the_record_and_no_weights(tmp_path: Path) -> None:
    names = ["model.safetensors", "model/model.safetensors", "model/model-00001-of-2.safetensors"]
    for name in [*names, "resume/x", RECORD, "config.json", "model/config.json"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    tidy(tmp_path)
    assert all((tmp_path / name).exists() for name in names)
    tidy(tmp_path, model=True)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["config.json", "model/config.json", RECORD]


def test_without_the_record_of_the_first_there_is_no_second(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = bench_of(write_study(), tmp_path / "out", same=True)
    baseline, mat = choose(bench.study.experiments(), ["proximal.2-16-16.m4.l1+1.r0.3.s1"])
    run_trial(bench, baseline)
    (bench.folder(baseline) / RECORD).unlink()
    with pytest.raises(UserError, match="holds no finished trial to start from"):
        run_trial(bench, mat)
