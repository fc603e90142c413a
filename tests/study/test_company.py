"""Trials that are trained together: which, and that each is taken, run and given back as alone."""

import gc
import json
import re
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multibranch.cli import main
from multibranch.errors import UserError
from multibranch.study import trial, worker
from multibranch.study.bench import Bench
from multibranch.study.company import Companies
from multibranch.study.experiment import Experiment
from multibranch.study.plan import load_study
from multibranch.study.storage import Queue, open_storage
from multibranch.study.trial import run_trials
from multibranch.study.worker import Work, run_workers
from multibranch.training import Trainer


def bench_of(file: Path, place: Path, data: Path, **settings: object) -> Bench:
    study = load_study(str(file))
    study.corpora[0].settings = {f"train.{name}": value for name, value in settings.items()}
    return Bench(study=study, output=place, data={"tiny": str(data)}, device="cpu")


def records(out: Path) -> list[dict[str, Any]]:
    return list(Queue(open_storage(f"sqlite:///{out}/study.db"), "tiny", []).records().values())


def test_company_has_one_recipe_and_vocabulary(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    file = write_study()

    def company(other: dict[str, object], **settings: object) -> int:
        """How many the first seed is trained with where the second has other settings."""
        benches = [
            bench_of(file, tmp_path / "work", tiny_data, **each)
            for each in (settings, {**settings, **other})
        ]
        one, two = (e for e in benches[0].study.experiments(2) if e.start == "scratch")
        companies = Companies(4, lambda experiment: benches[experiment.seed - 1])
        return len(companies.find(one, [one, two], [one, two]))

    assert company({}) == company({"log_every": 7}) == 2
    assert company({"label_smoothing": 0.2}) == 1
    assert company({}, patience=2) == 1  # it may end at any update
    assert company({}, clip_norm=1.0) == 1


def test_company_is_no_larger_than_asked_for_and_begins_with_what_others_start_from(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    bench = bench_of(write_study(), tmp_path / "work", tiny_data)
    every = [e for e in bench.study.experiments(4) if (e.start, e.seed) != ("pruned", 1)]
    second = [e for e in every if e.start == "proximal"]
    parents = {e.parent.key for e in every if e.parent is not None}
    pruned_later = [e for e in second if e.key in parents]
    others = [e for e in second if e.key not in parents]
    assert pruned_later and others
    found = Companies(3, lambda one: bench).find(others[0], [*others, *pruned_later], every)
    assert [e.key for e in found] == [e.key for e in (others[0], *pruned_later[:2])]
    assert Companies(1, lambda one: bench).find(second[0], second, every) == second[:1]
    companies = Companies(9, lambda one: bench)
    companies.apart = {second[1].key}
    assert second[1] not in companies.find(second[0], second, every)
    assert companies.find(second[1], second, every) == [second[1]]
    (pruned, *_) = (e for e in every if e.start == "pruned")
    assert companies.find(pruned, every, every) == [pruned]


def test_trials_that_were_saved_at_different_updates_go_on_with_those_beside_them(
    write_study: Callable[..., Path],
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where all were killed: they were refused together, and failed at every start."""
    bench = bench_of(write_study(), tmp_path / "work", tiny_data)
    experiments = [e for e in bench.study.experiments(5) if e.start == "scratch"]
    for experiment, update in zip(experiments, (7, 8, 8, None, None), strict=True):
        if update is not None:
            (bench.folder(experiment) / "resume" / f"update-{update:08d}").mkdir(parents=True)
    sizes: list[int] = []
    monkeypatch.setattr(trial, "run_together", lambda runs: sizes.append(len(runs)))
    monkeypatch.setattr(
        trial, "run_trial", lambda bench, experiment, watch: {"seed": experiment.seed}
    )
    found = run_trials([(bench, experiment) for experiment in experiments])
    assert [record["seed"] for record in found] == [1, 2, 3, 4, 5]
    assert sizes == [2, 2]


def test_trials_that_failed_together_leave_their_memory_to_those_after_them(
    write_study: Callable[..., Path],
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may have been too little of it, which is why they are tried again by themselves."""
    bench = bench_of(write_study(), tmp_path / "work", tiny_data)
    one, two = (e for e in bench.study.experiments(2) if e.start == "scratch")
    trainers: list[weakref.ref[Trainer]] = []

    class Watched(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            trainers.append(weakref.ref(self))

    def fail(record: dict[str, Any]) -> None:
        raise UserError("too little memory")

    def see(record: dict[str, Any]) -> None:
        ended = "translating" in record
        assert [each() is None for each in trainers] == [True, True, ended]

    monkeypatch.setattr(trial, "Trainer", Watched)
    gc.disable()
    try:
        with pytest.raises(UserError, match="too little memory"):
            run_trials([(bench, one), (bench, two)], watches=[None, fail])
        run_trials([(bench, one)], watches=[see])
    finally:
        gc.enable()


def test_a_command_trains_trials_of_one_architecture_as_one(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, out = write_study(), tmp_path / "out"
    words = ["study", "run", str(file), "--output", str(out), "--device", "cpu", "--seeds", "2"]
    assert main([*words, "--together", "4", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["done"] == 12
    found = Counter((r["experiment"]["start"], r.get("together")) for r in records(out))
    assert found == {
        ("scratch", 2): 2,
        ("continued", 2): 2,
        ("proximal", 4): 4,
        ("pruned", None): 4,
    }
    begun = re.findall(r"^\S+ (tiny\.\S+): (?:Transformer|MAT)", captured.err, flags=re.MULTILINE)
    assert len(begun) == len(set(begun)) == 12
    assert captured.err.rstrip().endswith("12 of 12 done")


def test_what_fails_together_is_run_apart(
    write_study: Callable[..., Path],
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bench_of(write_study(), tmp_path / "out", tiny_data)
    experiments = [e for e in bench.study.experiments(3) if e.start == "scratch"]
    run = worker.run_trials

    def failing(trials: list[tuple[Bench, Experiment]], **rest: Any) -> list[dict[str, Any]]:
        if any(experiment.seed == 2 for _, experiment in trials):
            raise RuntimeError("the second\nseed")
        return run(trials, **rest)

    monkeypatch.setattr(worker, "run_trials", failing)
    lines: list[str] = []
    job = Work(bench, experiments, f"sqlite:///{tmp_path}/study.db", together=3)
    assert run_workers(job, 1, tell=lines.append) == {"done": 2, "failed": 1}
    apart = "3 trials failed together (RuntimeError: the second seed): each by itself now"
    assert lines.count(apart) == 1
    assert job.queue().errors() == {experiments[1].key: "RuntimeError: the second seed"}


def test_trials_stopped_together_are_all_given_back_and_go_on_together(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, out = write_study(updates=300, every=300), tmp_path / "out"
    words = ["study", "run", str(file), "--output", str(out), "--device", "cpu", "--seeds", "2"]
    words += ["--together", "2", "--only", "scratch", "--json"]
    assert main([*words, "--minutes", "0.05"]) == 1
    assert json.loads(capsys.readouterr().out)["waiting"] == 2
    saved = {path.name for path in out.glob("trials/*/resume/update-*")}
    assert len(saved) == 1 and len(list(out.glob("trials/*/resume/update-*"))) == 2
    assert main(words) == 0
    assert [record["together"] for record in records(out)] == [2, 2]
