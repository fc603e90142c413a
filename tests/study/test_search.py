"""The search: what it proposes, that it prunes, and that it goes on where it stopped."""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import results_page
from multibranch import configuration
from multibranch.cli import main
from multibranch.data import PreparedData
from multibranch.directory import load_model
from multibranch.errors import UserError
from multibranch.study.bench import Bench
from multibranch.study.findings import write_search
from multibranch.study.plan import load_study, study_files
from multibranch.study.proposing import own_model, propose
from multibranch.study.searching import _sampler, search
from multibranch.study.space import Search
from multibranch.training import Config, Trainer, first_model
from multibranch.training.bad_batches import Diverged

optuna = pytest.importorskip("optuna")


def space_of(**given: Any) -> Search:
    """What may be chosen from scratch."""
    return Search(**given).completed(None)


def test_a_proposal_has_one_value_for_every_layer() -> None:
    space = space_of(branches=[1, 2, 3], layers_together=2, drop_branch=[0.1, 0.3])
    base = Config()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    for _ in range(20):
        model = propose(study.ask(), space, base).model
        assert len(model.branches) == len(model.drop_branch) == len(model.ffn_branches) == 12
        assert model.branches[::2] == model.branches[1::2]
        assert set(model.branches) <= {1, 2, 3}
        assert all(0.1 <= rate <= 0.3 + 1e-9 for rate in model.drop_branch)
        assert model.drop_kind in ("branch", "head")
    assert configuration.differences(base, Config()) == []


def test_the_studys_own_model_is_a_proposal_where_the_space_has_it() -> None:
    base = Config()
    base.model.branches, base.model.drop_branch = 3, 0.3
    space = space_of(branches=[1, 3], layers_together=3)
    fixed = own_model(space, base)
    study = optuna.create_study(sampler=_sampler(space, 1, done=0, fixed=fixed))
    model = propose(study.ask(), space, base).model
    assert model.branches == [3] * 12 and model.ffn_branches == [1] * 12
    assert model.drop_branch == pytest.approx([0.3] * 12) == model.drop_ffn
    assert model.drop_kind == "branch"
    for other in ({"branches": [1, 2]}, {"drop_ffn": [0.0, 0.2]}, {"drop_branch": [0.02, 0.4]}):
        assert own_model(space_of(**other), base) is None


def test_a_rates_upper_end_need_not_be_whole_steps_away() -> None:
    base = Config()
    base.model.branches, base.model.drop_branch = 3, 0.3
    assert own_model(space_of(drop_branch=[0.0, 0.33], drop_ffn=[0.1, 0.32]), base) is not None
    assert own_model(space_of(drop_branch=[0.0, 0.29]), base) is None
    study = optuna.create_study()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna warns of a range that steps do not divide
        model = propose(study.ask(), space_of(drop_branch=[0.02, 0.1]), base).model
    assert set(model.drop_branch) <= {0.02, 0.07}


def test_any_seed_that_the_verb_takes_gives_draws() -> None:
    study = optuna.create_study(sampler=_sampler(space_of(), 2**32 - 1, done=3))
    assert propose(study.ask(), space_of(), Config()).model.drop_kind in ("branch", "head")


def test_a_search_counts_its_trials_over_several_commands(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    space = "search: {branches: [1, 2], first_trials: 2, warm_up: 0, trials: 8}"
    file = write_study(updates=10, every=2, search=space)
    words = ["study", "search", str(file), "--output", str(tmp_path), "--device", "cpu", "--json"]
    words += ["--record", str(tmp_path / "search.json")]
    assert main([*words, "--trials", "3"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["trials"] == 3
    assert main(words) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["trials"] == 8
    losses = [row["validation_loss"] for row in second["best"]]
    assert losses == sorted(losses)
    assert losses[0] <= first["best"][0]["validation_loss"]
    study = optuna.load_study(study_name="tiny-search", storage=f"sqlite:///{tmp_path}/study.db")
    states = Counter(trial.state.name for trial in study.get_trials())
    assert states == {"COMPLETE": 8 - second["pruned"], "PRUNED": second["pruned"]}
    assert second["pruned"] >= 1
    assert second["scores"]["multi_bleu"]["signature"].startswith("multi-bleu|")
    assert len(second["best"][0]["branches"].split()) == 2
    # The first trial was the study's own model: a Transformer, nothing dropped.
    assert second["own"]["trial"] == 0 == first["own"]["trial"]
    assert (second["own"]["branches"], second["own"]["drop_branch"]) == ("1 1", "0.00 0.00")
    assert second["own_scores"]["multi_bleu"]["value"] >= 0
    assert sum(trial.user_attrs["own"] for trial in study.get_trials()) == 1
    record = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    place = f"--output {tmp_path} --device cpu"
    assert record["command"] == f"multibranch study search {file} --trials 8 --seed 1 {place}"
    assert {name: record[name] for name in second if name != "folder"} == {
        name: value for name, value in second.items() if name != "folder"
    }
    assert "folder" not in record


def test_the_model_to_beat_is_never_pruned(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda self: True)
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    found = search(bench, url=f"sqlite:///{tmp_path}/s.db", trials=3, tell=lambda line: None)
    assert (found["trials"], found["pruned"]) == (3, 2)
    assert found["own"] == found["best"][0]
    assert found["own_scores"] == found["scores"]


@pytest.mark.parametrize("first", [True, False])
def test_a_proposal_that_falls_apart_is_pruned_and_the_model_to_beat_must_not(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    begun: list[Config] = []

    def diverging(config: Config, data: Any, **options: Any) -> Trainer:
        begun.append(config)
        if len(begun) == (1 if first else 2):
            raise Diverged("the gradient was not finite")
        return Trainer(config, data, **options)

    monkeypatch.setattr("multibranch.study.searching.Trainer", diverging)
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url = f"sqlite:///{tmp_path}/s.db"
    if first:
        with pytest.raises(UserError, match="not finite"):
            search(bench, url=url, trials=3, tell=lambda line: None)
    else:
        found = search(bench, url=url, trials=3, tell=lambda line: None)
        assert (found["trials"], found["pruned"]) == (3, 1)
    study = optuna.load_study(study_name="tiny-search", storage=url)
    states = [trial.state.name for trial in study.get_trials()]
    assert states == (["FAIL"] if first else ["COMPLETE", "PRUNED", "COMPLETE"])


def test_losses_decide_where_the_study_goes_by_scores(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    study = load_study(str(write_study(every=2)))
    study.settings |= {"train.validate_score": True, "train.stop_on": "score"}
    bench = Bench(study, tmp_path / "out", device="cpu")
    found = search(bench, url=f"sqlite:///{tmp_path}/s.db", trials=1, tell=lambda line: None)
    log = (Path(found["folder"]) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [record for record in map(json.loads, log) if record["kind"] == "validation"]
    assert all(record.get("score") is None for record in validations)
    lowest = min(record["plain"] for record in validations)
    assert found["best"][0]["validation_loss"] == pytest.approx(lowest, abs=1e-4)


def test_how_a_trial_goes_is_told_while_it_is_run(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    lines: list[str] = []
    search(bench, url=f"sqlite:///{tmp_path}/s.db", trials=1, tell=lines.append, tell_every=0.0)
    assert [line.rsplit(" ", 1)[0] for line in lines[1:]] == [
        "trial 0: update 5 of 6, validation loss",
        "trial 0: update 6 of 6, validation loss",
        "trial 0: loss",
    ]
    losses = [float(line.rsplit(" ", 1)[1]) for line in lines[1:]]
    assert losses[2] == min(losses[:2])


def test_a_trial_that_ctrl_c_stops_is_told_so_and_leaves_no_checkpoint(
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def stopping(config: Config, data: Any, **options: Any) -> Trainer:
        def stop(record: dict[str, Any]) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        return Trainer(config, data, **{**options, "watch": stop})

    monkeypatch.setattr("multibranch.study.searching.Trainer", stopping)
    words = ["study", "search", str(write_study(updates=10, every=2)), "--output", str(tmp_path)]
    assert main([*words, "--device", "cpu"]) == 130
    error = capsys.readouterr().err
    assert "trial 0: stopped, and does not count\n" in error
    assert "pruned" not in error
    study = optuna.load_study(study_name="tiny-search", storage=f"sqlite:///{tmp_path}/study.db")
    assert [trial.state.name for trial in study.get_trials()] == ["FAIL"]
    assert not list((tmp_path / "search").glob("**/*.safetensors"))


def test_a_search_of_another_storage_leaves_the_models_of_the_first_alone(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    found = [
        search(bench, url=f"sqlite:///{tmp_path}/{seed}.db", trials=1, seed=seed, tell=print)
        for seed in (1, 2, 1)  # the last one finds its trial done, and scores it again
    ]
    assert found[0] == found[2]
    assert found[0]["folder"] != found[1]["folder"]
    assert found[0]["best"] != found[1]["best"]
    weights = [(Path(one["folder"]) / "model.safetensors").read_bytes() for one in found[:2]]
    assert weights[0] != weights[1]


def test_a_best_model_that_lies_on_another_machine_is_named(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url, lines = f"sqlite:///{tmp_path}/s.db", []
    found = search(bench, url=url, trials=1, tell=lines.append)
    shutil.rmtree(found["folder"])
    lines.clear()
    again = search(bench, url=url, trials=1, tell=lines.append)
    assert lines == [f"trial 0 is not scored here: there is no model {found['folder']}"]
    assert again["best"] == found["best"]
    assert not {"scores", "own_scores"} & again.keys()


def begun_elsewhere(url: str, *, beat: int) -> Any:
    """A trial that a worker of another machine has begun, and its study."""
    study = optuna.load_study(study_name="tiny-search", storage=url)
    trial = study.ask()
    trial.set_user_attr("lease", {"worker": "elsewhere/1:1:1", "beat": beat})
    return study, trial


def test_a_trial_whose_worker_is_silent_on_another_machine_does_not_count(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url, lines = f"sqlite:///{tmp_path}/s.db", []
    search(bench, url=url, trials=1, tell=lines.append)
    study, _ = begun_elsewhere(url, beat=3)
    lines.clear()
    found = search(bench, url=url, trials=2, lease=1.0, tell=lines.append)
    assert found["trials"] == 2
    assert lines[:2] == [
        "waiting for 1 trial of other workers",
        "trial 1: its worker is gone: it does not count",
    ]
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_a_trial_whose_worker_gives_signs_is_waited_for(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url, lines = f"sqlite:///{tmp_path}/s.db", []
    search(bench, url=url, trials=1, tell=lines.append)
    study, trial = begun_elsewhere(url, beat=0)

    def go_on() -> None:
        for beat in range(1, 10):
            time.sleep(0.25)
            trial.set_user_attr("lease", {"worker": "elsewhere/1:1:1", "beat": beat})
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)

    other = threading.Thread(target=go_on)
    other.start()
    lines.clear()
    found = search(bench, url=url, trials=2, lease=1.5, tell=lines.append)
    other.join()
    assert (found["trials"], found["pruned"]) == (2, 1)
    assert lines == ["waiting for 1 trial of other workers"]
    assert len(study.get_trials()) == 2


def test_a_search_gives_signs_while_it_trains_and_gives_up_a_trial_that_was_taken_for_gone(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study(every=1))), tmp_path / "out", device="cpu")
    url = f"sqlite:///{tmp_path}/s.db"
    lines: list[str] = []
    beats: set[int] = set()

    def tell(line: str) -> None:
        lines.append(line)
        study = optuna.load_study(study_name="tiny-search", storage=url)
        trial = study.get_trials()[-1]
        beats.add(trial.user_attrs["lease"]["beat"])
        if line.startswith("trial 0: update 4 "):
            study.tell(0, state=optuna.trial.TrialState.FAIL)

    found = search(bench, url=url, trials=1, tell=tell, tell_every=0.0)
    assert len(beats) >= 4
    assert "trial 0: another worker took this one for gone: it does not count" in lines
    assert found["trials"] == 1
    assert (found["own"]["trial"], found["best"][0]["trial"]) == (1, 1)
    [lost] = (tmp_path / "out" / "search").glob("tiny-search-0-*")
    assert not list(lost.glob("**/*.safetensors"))


def asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a worker of another machine begin a trial just before our first one, and fall silent."""
    ask, begun = optuna.study.Study.ask, []

    def after_another(self: Any) -> Any:
        if not begun:
            begun.append(ask(self))
            begun[0].set_user_attr("lease", {"worker": "elsewhere/1:1:1", "beat": 1})
        return ask(self)

    monkeypatch.setattr(optuna.study.Study, "ask", after_another)


@pytest.mark.parametrize(
    ("trials", "states"),
    [(1, ["FAIL", "FAIL", "COMPLETE"]), (2, ["FAIL", "COMPLETE", "COMPLETE"])],
)
def test_workers_that_begin_at_once_begin_no_trial_too_many_and_one_tries_the_model_to_beat(
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trials: int,
    states: list[str],
) -> None:
    asked_for_at_once(monkeypatch)
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url = f"sqlite:///{tmp_path}/s.db"
    found = search(bench, url=url, trials=trials, lease=1.0, tell=lambda line: None)
    assert found["trials"] == trials
    study = optuna.load_study(study_name="tiny-search", storage=url)
    assert [trial.state.name for trial in study.get_trials()] == states
    assert found["own"]["trial"] == 2  # the first of the two might have been it, and is gone


def test_commands_that_share_a_search_end_with_the_same_record(
    write_study: Callable[..., Path], study_command: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("search", write_study(), "--output", tmp_path, "--device", "cpu", "--trials", "4")
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for process in [study_command(*words, "--record", file) for file in files]:
        said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    one, two = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    assert one == two
    assert (one["asked"], one["trials"]) == (4, 4)
    assert {"scores", "own_scores"} <= one.keys()


def interrupting(number: int, then: Callable[[], None]) -> Callable[..., Trainer]:
    """A Trainer that does something at the first validation of the so-manieth trial from now."""
    begun = []

    def trainer(config: Config, data: Any, **options: Any) -> Trainer:
        begun.append(config)
        if len(begun) == number:
            options["watch"] = lambda record: then()
        return Trainer(config, data, **options)

    return trainer


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, RuntimeError])
def test_a_search_that_ends_early_leaves_a_record_of_the_trials_so_far(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Any
) -> None:
    def end() -> None:
        if by is RuntimeError:
            raise RuntimeError("something broke")
        os.kill(os.getpid(), by)

    monkeypatch.setattr("multibranch.study.searching.Trainer", interrupting(3, end))
    words = ["study", "search", str(write_study(updates=10)), "--output", str(tmp_path)]
    words += ["--device", "cpu", "--trials", "7", "--record", str(tmp_path / "search.json")]
    if by is RuntimeError:
        with pytest.raises(RuntimeError, match="something broke"):
            main(words)
    else:
        assert main(words) == 128 + by
    record = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    assert (record["asked"], record["trials"], record["own"]["trial"]) == (7, 2, 0)
    assert sorted(row["trial"] for row in record["best"]) == [0, 1]
    assert "--trials 7 " in record["command"]
    assert not {"scores", "own_scores"} & record.keys()  # the test set is for the end


def test_a_signal_at_the_end_of_a_trial_ends_the_search_with_that_trial(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trainer: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        finish(trainer)

    finish = Trainer._finish
    monkeypatch.setattr(Trainer, "_finish", interrupted)
    words = ["study", "search", str(write_study()), "--output", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--trials", "3", "--record", str(tmp_path / "search.json")]) == 143
    assert json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))["trials"] == 1


def test_a_signal_while_a_trial_is_pruned_ends_the_search_with_that_trial(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def should_prune(trial: optuna.trial.Trial) -> bool:
        if not trial.user_attrs["own"]:
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(optuna.trial.Trial, "should_prune", should_prune)
    words = ["study", "search", str(write_study()), "--output", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--trials", "4", "--record", str(tmp_path / "search.json")]) == 143
    found = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    assert (found["trials"], found["pruned"]) == (2, 1)


def test_sigterm_ends_a_search_that_waits_for_others_with_what_it_has(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url, kept = f"sqlite:///{tmp_path}/s.db", []
    search(bench, url=url, trials=1, tell=lambda line: None)
    begun_elsewhere(url, beat=0)

    def tell(line: str) -> None:
        if line.startswith("waiting for"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        search(bench, url=url, trials=2, tell=tell, keep=kept.append)
    assert [(found["asked"], found["trials"]) for found in kept] == [(2, 1)]


def test_a_search_ends_when_its_time_is_up_and_scores_what_it_has(
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    words = ["study", "search", str(write_study()), "--output", str(tmp_path), "--device", "cpu"]
    words += ["--record", str(tmp_path / "search.json"), "--trials"]
    assert main([*words, "1"]) == 0
    before = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    slow = interrupting(1, lambda: time.sleep(2))
    monkeypatch.setattr("multibranch.study.searching.Trainer", slow)
    capsys.readouterr()
    assert main([*words, "3", "--minutes", "0.01"]) == 1
    said = capsys.readouterr().err
    assert " the time is up\n" in said
    assert said.endswith(" 2 trials left to run: the same command goes on\n")
    record = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    assert (record.pop("asked"), record.pop("trials")) == (3, 1)
    assert {**before, "command": record["command"]} == {**record, "asked": 1, "trials": 1}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_time_in_which_no_trial_ends_is_told_as_too_short(
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    slow = interrupting(1, lambda: time.sleep(2))
    monkeypatch.setattr("multibranch.study.searching.Trainer", slow)
    words = ["study", "search", str(write_study()), "--output", str(tmp_path), "--device", "cpu"]
    words += ["--record", str(tmp_path / "search.json")]
    assert main([*words, "--minutes", "0.01"]) == 2
    assert capsys.readouterr().err.endswith(
        "multibranch study: no trial of the search was finished within --minutes, and the one at "
        "work does not count: give more\n"
    )
    assert not (tmp_path / "search.json").exists()


def test_no_trial_is_begun_after_the_time_though_a_training_passed_over_its_end(
    write_study: Callable[..., Path],
    pass_the_end: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(config: Config, data: Any, **options: Any) -> Trainer:
        pass_the_end()
        return Trainer(config, data, **options)

    monkeypatch.setattr("multibranch.study.searching.Trainer", late)
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    url = f"sqlite:///{tmp_path}/s.db"
    found = search(bench, url=url, trials=3, minutes=60, tell=lambda line: None)
    assert (found["asked"], found["trials"]) == (3, 1)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("branches: []", "search.branches is empty: give at least one value"),
        ("drop_ffn: []", "search.drop_ffn is empty: give at least one value"),
        ("drop_branch: [0.0, 1.5]", "search.drop_branch: 1.5 cannot be searched"),
        ("drop_kind: [brnch]", "search.drop_kind: brnch cannot be searched"),
        ("trials: 0", "search.trials: 0 cannot be searched"),
        ("warm_up: -1", "search.warm_up: -1 cannot be searched"),
    ],
)
def test_a_space_that_holds_no_proposal_is_one_line(
    write_study: Callable[..., Path], tmp_path: Path, capsys: Any, space: str, said: str
) -> None:
    file = write_study(search=f"search: {{{space}}}")
    assert main(["study", "search", str(file), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"multibranch study: {file}: {said}\n"


def test_a_study_that_does_not_say_what_may_be_chosen_is_not_searched(
    write_study: Callable[..., Path], tmp_path: Path, capsys: Any
) -> None:
    file = write_study(search="")
    place = ["--output", str(tmp_path / "out")]
    assert main(["study", "search", str(file), "--trials", "1", *place]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"multibranch study: {file} has no key search, which says what may be")
    assert not (tmp_path / "out").exists()
    # The usual choices stand where that line says that they do.
    text = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, flags=re.MULTILINE))
    usual = {name: yaml.safe_load(value) for name, value in told.items()}
    assert usual == asdict(Search())


def test_a_search_that_cannot_be_written_down_does_not_begin(
    write_study: Callable[..., Path], tmp_path: Path, capsys: Any
) -> None:
    words = ["study", "search", str(write_study()), "--output", str(tmp_path / "out")]
    assert main([*words, "--trials", "1", "--record", str(tmp_path)]) == 2
    said = f"{tmp_path} is a folder: give --record a file"
    assert capsys.readouterr().err == f"multibranch study: {said}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change", [("[1, 2]", "[1, 2, 3]"), ("train.warmup: 4", "train.warmup: 5")]
)
def test_a_search_does_not_go_on_with_another_space_or_other_settings(
    write_study: Callable[..., Path], tmp_path: Path, capsys: Any, change: tuple[str, str]
) -> None:
    file = write_study(search="search: {branches: [1, 2], trials: 9}")
    words = ["study", "search", str(file), "--output", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--trials", "1"]) == 0
    file.write_text(file.read_text(encoding="utf-8").replace("trials: 9", "trials: 1"))
    assert main(words) == 0  # how many trials there may be is no setting of a trial
    file.write_text(file.read_text(encoding="utf-8").replace(*change))
    capsys.readouterr()
    assert main([*words, "--trials", "2"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "the search of tiny in this storage began with other settings or data" in line


def test_where_encoders_are_pretrained_there_is_nothing_to_search(tmp_path: Path, capsys) -> None:
    assert main(["study", "search", "glue", "--output", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("multibranch study: glue has nothing to search")


# -- From a trained Transformer --------------------------------------------------------------------

TRANSFORMER = "tiny.scratch.1-16-16.m4.l1+1.r0.s1"
OWN = "tiny.proximal.2-16-16.m4.l1+1.r0.1.s1"


@pytest.fixture
def write_proximal(write_study: Callable[..., Path]) -> Callable[..., Path]:
    """Writes the study whose own model is a Transformer branched out: its grids, exchanged."""

    def write(search: str = "search: {}", **changes: Any) -> Path:
        path = write_study(search=search)
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        content["grids"].reverse()
        path.write_text(yaml.safe_dump({**content, **changes}), encoding="utf-8")
        return path

    return write


def baselines(folder: Path) -> list[Path]:
    """The trials of the study that were run in an output folder."""
    return sorted(path.parent for path in folder.glob("trials/*/trial.json"))


def test_the_studys_own_model_is_the_first_that_its_first_grid_lists(
    write_study: Callable[..., Path], write_proximal: Callable[..., Path]
) -> None:
    assert load_study(str(write_study())).own().key == TRANSFORMER
    study = load_study(str(write_proximal()))
    assert study.own().key == OWN
    assert study.own(3).parent == study.experiments(seeds=3)[-1].baseline
    assert study.experiments(seeds=1)[0].key == TRANSFORMER  # which it drags along


def test_every_study_that_is_searched_can_try_its_own_model_first(tmp_path: Path) -> None:
    studies = [study for study in map(load_study, study_files()) if study.search is not None]
    assert "builtin" in [study.name for study in studies]
    for study in studies:
        own, space = study.own(), study.search
        assert space is not None
        space = space.completed(None if own.parent is None else own.ffn_branches)
        assert own_model(space, Bench(study, tmp_path).config(own)) is not None, study.name
    assert load_study("builtin").own().start == "proximal"


def test_trials_are_second_stages_of_one_transformer_that_searches_share(
    write_proximal: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    configs: list[Config] = []

    def noted(config: Config, data: Any, **options: Any) -> Trainer:
        configs.append(config)
        return Trainer(config, data, **options)

    monkeypatch.setattr("multibranch.study.searching.Trainer", noted)
    second = {"train.warmup": 2, "train.log_every": 3}
    file = write_proximal(
        "search: {branches: [1, 2, 3], first_trials: 9}", second_settings=second, second_updates=9
    )
    place = ["--output", str(tmp_path / "out"), "--device", "cpu"]
    words = ["study", "search", str(file), *place, "--json", "--trials", "3"]
    assert main([*words, "--record", str(tmp_path / "search-x.json")]) == 0
    said = capsys.readouterr()
    assert f" {TRANSFORMER}: Transformer 1/16/16\n" in said.err
    [baseline] = baselines(tmp_path / "out")
    record = json.loads((baseline / "trial.json").read_text(encoding="utf-8"))
    assert (record["key"], record["updates"]) == (TRANSFORMER, 6)
    # Another search, in a storage of its own, finds it trained, and so does the study.
    other = ["--storage", f"sqlite:///{tmp_path}/other.db"]
    assert main([*words, *other]) == 0
    assert main(["study", "run", str(file), *place, "--only", TRANSFORMER]) == 0
    assert TRANSFORMER in capsys.readouterr().err
    assert baselines(tmp_path / "out") == [baseline]
    finished = json.loads((baseline / "trial.json").read_text(encoding="utf-8"))["finished"]
    assert finished == record["finished"]
    assert len(configs) == 6
    for config in configs:
        assert config.train.init_from == str(baseline)
        assert (config.train.max_updates, config.train.warmup) == (9, 2)
        assert config.model.ffn_branches == [1, 1]  # the Transformer's, in whatever space
    # Each layer's branches are copies of the Transformer's, so that all begin at its loss.
    one = load_model(baseline)
    starts = set()
    for config in configs:
        text = PreparedData.open(str(config.data.folder)).text
        for block, trained in zip(first_model(config, text).blocks, one.blocks, strict=True):
            weight = block.attention.qkv_weight
            assert all(
                torch.equal(each, trained.attention.qkv_weight[:, 0]) for each in weight.unbind(1)
            )
        log = (Path(config.train.output) / "metrics.jsonl").read_text(encoding="utf-8")
        starts |= {
            row["plain"] for row in map(json.loads, log.splitlines()) if row["kind"] == "start"
        }
    branches = {tuple(config.model.branches) for config in configs}  # type: ignore[arg-type]
    assert len(branches) > 2 and branches > {(2, 2)}
    assert max(starts) == pytest.approx(min(starts), rel=1e-5)
    # The record says what was beaten and what all started from, and a page shows it.
    found = json.loads((tmp_path / "search-x.json").read_text(encoding="utf-8"))
    assert found["model"] == OWN and found["own"]["branches"] == "2 2"
    assert (found["seed"], found["updates"], found["asked"]) == (1, 9, 3)
    assert found["space"]["ffn_branches"] == [1]
    assert found["started_from"] == {
        "key": TRANSFORMER,
        "validation_loss": round(record["validation_plain"], 4),
        "parameters": record["parameters"],
        "updates": 6,
        "seconds": record["wall_seconds"],
    }
    assert found["started_from"]["validation_loss"] == pytest.approx(min(starts), abs=1e-4)
    times = [row["seconds"] for row in found["best"]]
    assert found["seconds"] == pytest.approx(sum(times), abs=0.3) and min(times) > 0
    metrics = {"bleu", "multi_bleu", "chrf"}
    for which in ("scores", "own_scores", "started_from_scores"):
        assert found[which].keys() == metrics
    page = "\n".join(results_page.searched(Path("search-x.json"), found))
    [row] = [line for line in page.splitlines() if line.startswith("| what all started from")]
    cells = row.strip("| ").split(" | ")
    assert cells[1] == f"{found['started_from']['validation_loss']:.4f}"
    assert cells[2] == f"{found['started_from_scores'][next(iter(found['scores']))]['value']:.2f}"
    assert f"All started from `{TRANSFORMER}`, which had 6 updates; trained for at most 9" in page
    assert len({line.count(" | ") for line in page.splitlines() if line.startswith("| ")}) == 1


def test_searches_at_once_train_what_they_start_from_once(
    write_proximal: Callable[..., Path], study_command: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("search", write_proximal(), "--output", out, "--device", "cpu", "--trials", "3")
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    said = []
    for process in [study_command(*words, "--record", file) for file in files]:
        said.append(process.communicate(timeout=120))
        assert process.returncode == 0, said
    one, two = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    assert one == two and one["trials"] == 3
    assert sum(f"{TRANSFORMER}: Transformer 1/16/16" in errors for _, errors in said) == 1
    assert len(baselines(out)) == 1


def test_updates_of_a_search_are_those_of_a_trial(
    write_proximal: Callable[..., Path], tmp_path: Path
) -> None:
    study = load_study(str(write_proximal("search: {updates: 2}")))
    bench = Bench(study, tmp_path / "out", device="cpu")
    found = search(bench, url=f"sqlite:///{tmp_path}/s.db", trials=1, tell=lambda line: None)
    assert (found["updates"], found["started_from"]["updates"]) == (2, 6)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, "--minutes"])
def test_a_search_that_is_stopped_before_its_first_trial_goes_on(
    write_proximal: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    by: Any,
) -> None:
    words = ["study", "search", str(write_proximal()), "--output", str(tmp_path), "--device", "cpu"]
    words += ["--trials", "2", "--record", str(tmp_path / "search.json")]
    # A busy machine is not at the Transformer's training in 1.2 seconds.
    for minutes in (0.02, 0.2, 2):
        timed = ["--minutes", str(minutes)] if by == "--minutes" else []

        def stop(seconds: float = 60 * minutes + 1, signaled: bool = not timed) -> None:
            if signaled:
                os.kill(os.getpid(), by)
            else:
                time.sleep(seconds)

        with monkeypatch.context() as patch:
            patch.setattr("multibranch.study.trial.Trainer", interrupting(1, stop))
            assert main([*words, *timed]) == (1 if timed else 128 + by)
        said = capsys.readouterr().err
        assert "the same command goes on\n" in said and ": stopped, and does not" not in said
        assert not (tmp_path / "search.json").exists()
        assert not timed or " 2 trials left to run: the same command goes on\n" in said
        if list(tmp_path.glob("trials/tiny.*/resume/update-*")):
            break
    [folder] = tmp_path.glob("trials/tiny.*")
    assert list(folder.glob("resume/update-*"))
    assert main(words) == 0
    record = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    assert (record["trials"], record["started_from"]["updates"]) == (2, 6)
    updates = [
        row["update"]
        for row in map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
        if row["kind"] == "train"
    ]
    assert updates == [1, 2, 3, 4, 5, 6]  # it went on where it was


def test_a_time_that_is_up_before_a_trial_is_too_short_only_if_nothing_else_was_done(
    write_proximal: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(load_study(str(write_proximal())), tmp_path / "out", device="cpu")
    url = f"sqlite:///{tmp_path}/s.db"

    def within(minutes: float) -> dict[str, Any]:
        slow = interrupting(1, lambda: time.sleep(60 * minutes))
        monkeypatch.setattr("multibranch.study.searching.Trainer", slow)
        return search(bench, url=url, trials=1, minutes=minutes, tell=lambda line: None)

    for minutes in (0.1, 0.5, 2):  # until there is time enough for the Transformer
        found = within(minutes)
        assert (found["trials"], found["best"]) == (0, [])
        if found["started_from"] is not None:
            break
    assert found["started_from"]["key"] == TRANSFORMER
    with pytest.raises(UserError, match="no trial of the search was finished within --minutes"):
        within(0.02)


@pytest.mark.parametrize(
    ("search", "changes", "said"),
    [
        ("search: {ffn_branches: [1, 2]}", {}, f"every trial starts from {TRANSFORMER}, and has"),
        ("search: {}", {"starts": ["continued"]}, "is neither from scratch nor proximal"),
        ("search: {}", {"seed": 0}, "--seed must be 1 to 1,000, not 0, where a search starts from"),
    ],
)
def test_what_no_search_starts_from_is_one_line(
    write_proximal: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    search: str,
    changes: dict[str, Any],
    said: str,
) -> None:
    file = write_proximal(search)
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    seed = changes.pop("seed", 1)
    content["grids"][0] |= changes
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    place = ["--output", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["study", "search", str(file), "--seed", str(seed), *place]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_a_search_goes_on_from_the_same_model_only(
    write_study: Callable[..., Path],
    write_proximal: Callable[..., Path],
    tmp_path: Path,
    capsys: Any,
) -> None:
    words = ["study", "search", str(write_proximal("search: {ffn_branches: [1]}"))]
    words += ["--output", str(tmp_path), "--device", "cpu", "--trials", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert f"\nall started from {TRANSFORMER}\n" in shown
    for model in ("the best, trial 0", "the study's own, trial 0", "what all started from"):
        [row] = [line for line in shown.splitlines() if line.startswith(f"│ {model}")]
        assert row.count("│") == 7 and "–" not in row  # loss, size and three scores
        assert re.search(r"│ \d+\.\d{4} +│", row)  # losses of trials lie close together
    assert main([*words, "--seed", "2"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    other = TRANSFORMER.replace(".s1", ".s2")
    assert f"started from {TRANSFORMER}, and this one would from {other}: put back" in line
    write_proximal("search: {ffn_branches: [1]}", updates=7)  # of the Transformer
    assert main(words) == 2
    assert "began with other settings or data" in capsys.readouterr().err
    write_study(search="search: {ffn_branches: [1]}")
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"started from {TRANSFORMER}, and this one would from scratch: put back" in line
    assert len(baselines(tmp_path)) == 1


def test_a_start_that_failed_or_lies_elsewhere_is_told_with_what_to_do(
    write_proximal: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def broken(config: Config, data: Any, **options: Any) -> Trainer:
        raise RuntimeError("no memory")

    file = write_proximal()
    words = ["study", "search", str(file), "--device", "cpu", "--trials", "1", "--seed", "2"]
    storage = ["--storage", f"sqlite:///{tmp_path}/s.db"]
    out = ["--output", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("multibranch.study.trial.Trainer", broken)
        assert main([*words, *storage, *out]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "which the search starts from, failed: RuntimeError: no memory; with that put" in line
    again = shlex.split(line.partition("put right: multibranch ")[2])
    assert main(again) == 0  # the study's own seeds end before this one
    assert main([*words, *storage, *out]) == 0
    capsys.readouterr()
    # A fresh folder with the storage of before: as on another machine.
    assert main([*words, *storage, "--output", str(tmp_path / "elsewhere")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "which the search starts from, was trained elsewhere: there is no model" in line


def test_a_record_that_cannot_be_written_leaves_the_one_before(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    path = tmp_path / "search.json"
    write_search(path, bench, {"trials": 1}, command="multibranch study search")
    before = path.read_bytes()
    assert json.loads(before)["trials"] == 1

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))  # as of a disk that gets full
    try:
        with pytest.raises(OSError, match="File too large"):
            write_search(path, bench, {"trials": 2}, command="multibranch study search")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".search.json.*"))
