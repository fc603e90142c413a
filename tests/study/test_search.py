"""The search: what it proposes, that it prunes, and that it goes on where it stopped."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multibranch import configuration
from multibranch.cli import main
from multibranch.study.bench import Bench
from multibranch.study.plan import Search, load_study
from multibranch.study.searching import _sampler, propose, search
from multibranch.training import Config, Trainer

optuna = pytest.importorskip("optuna")


def test_a_proposal_has_one_value_for_every_layer() -> None:
    space = Search(branches=[1, 2, 3], layers_together=2, drop_branch=[0.1, 0.3])
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


def test_any_seed_that_the_verb_takes_gives_draws() -> None:
    study = optuna.create_study(sampler=_sampler(Search(), 2**32 - 1, done=3))
    assert propose(study.ask(), Search(), Config()).model.drop_kind in ("branch", "head")


def test_a_search_counts_its_trials_over_several_commands(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = write_study(updates=10, every=2)
    with file.open("a", encoding="utf-8") as stream:
        stream.write("search: {branches: [1, 2], first_trials: 2, warm_up: 0, trials: 8}\n")
    words = ["study", "search", str(file), "--output", str(tmp_path), "--device", "cpu", "--json"]
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
