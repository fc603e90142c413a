"""The order in which trials are taken, and the queue's leases, without any training."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from multibranch.errors import UserError
from multibranch.study.experiment import Experiment
from multibranch.study.order import hopeless, next_experiment, takeable
from multibranch.study.plan import load_study
from multibranch.study.storage import Queue, open_storage, without_password

pytest.importorskip("optuna")
BASE = Experiment(corpus="c", seed=1)
MAT = replace(BASE, start="proximal", branches=3, drop_branch=0.3)
OTHER = replace(BASE, hidden=2048, branches=2, drop_branch=0.1)
ALL = [BASE, BASE.continued, MAT, OTHER]


# -- The order ------------------------------------------------------------------------------------


def test_shared_stages_go_first_and_what_starts_from_them_waits() -> None:
    assert next_experiment([OTHER, *ALL], {}) == BASE
    running = {BASE.key: "running"}
    assert takeable(ALL, running) == [OTHER]
    assert next_experiment(ALL, running) == OTHER
    assert next_experiment(ALL, {**running, OTHER.key: "done"}) is None
    done = {BASE.key: "done"}
    assert next_experiment([OTHER, *ALL], done, group=OTHER.group) == BASE.continued


def test_a_worker_stays_with_an_architecture_and_leaves_others_theirs() -> None:
    seeds = [replace(one, seed=seed) for seed in (1, 2) for one in (OTHER, replace(OTHER, heads=2))]
    first = next_experiment(seeds, {})
    assert first == seeds[0]
    states = {seeds[0].key: "running"}
    assert next_experiment(seeds, states) == seeds[1]
    states = {seeds[0].key: "done"}
    assert next_experiment(seeds, states, group=seeds[0].group) == seeds[2]


def test_what_starts_from_a_failure_is_hopeless_and_what_lies_elsewhere_is_not_taken() -> None:
    pruned = replace(MAT, start="pruned", keep=1)
    states = {BASE.key: "failed"}
    assert hopeless([*ALL, pruned], states) == [BASE.continued, MAT, pruned]
    assert takeable(ALL, {BASE.key: "done", OTHER.key: "done"}, here=lambda e: False) == []


def test_every_experiment_of_a_study_is_taken_once_whatever_the_number_of_workers() -> None:
    experiments = load_study("multi30k-small").experiments(seeds=1)
    states: dict[str, str] = {}
    groups, order = [""] * 5, []
    while len(order) < len(experiments):
        for worker in range(5):
            chosen = next_experiment(experiments, states, group=groups[worker])
            if chosen is not None:
                assert chosen.parent is None or states[chosen.parent.key] == "done"
                states[chosen.key] = "done"
                groups[worker] = chosen.group
                order.append(chosen.key)
    assert sorted(order) == sorted(e.key for e in experiments)
    assert next_experiment(experiments, states) is None


# -- The queue ------------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


def queue(url: str, *, lease: float = 60.0) -> Queue:
    made = Queue(open_storage(url), "s", ALL, lease=lease)
    made.fill()
    return made


def record(experiment: Experiment) -> dict:
    return {"key": experiment.key, "valid_bleu": {"1": 30.5, "1.4": 31.25}}


def test_two_workers_add_every_trial_once_and_one_of_them_takes_it(url: str) -> None:
    one, two = queue(url), queue(url)
    assert len(one.storage.get_all_trials(one.study_id)) == len(ALL)
    trial = one.take(BASE)
    assert trial is not None
    assert two.take(BASE) is None
    assert two.states()[BASE.key] == "running"
    assert one.done(trial, record(BASE))
    assert two.states()[BASE.key] == "done"
    assert two.records() == {BASE.key: record(BASE)}
    assert two.trials()[BASE.key].value == 31.25


def test_trials_that_two_workers_added_at_once_count_once(url: str) -> None:
    one = queue(url)
    one._add(BASE.key, BASE.group)  # as another worker may that had not seen the first one's
    trial = one.take(BASE)
    assert trial is not None
    assert queue(url).take(BASE) is None
    assert one.trials()[BASE.key].number == 0


def test_a_lease_that_is_renewed_holds_and_one_that_is_not_ends(url: str) -> None:
    one, two = queue(url, lease=0.4), queue(url, lease=0.4)
    trial = one.take(BASE)
    assert trial is not None
    for _ in range(6):
        assert two.take_back() == []
        time.sleep(0.1)
        assert one.leases.renew(trial)
    assert two.take_back() == []
    time.sleep(0.5)
    assert two.take_back() == [BASE.key]
    assert two.take_back() == []
    again = two.take(BASE)
    assert again not in (None, trial)
    # The first worker was only slow: its result comes too late, and it is told so.
    assert not one.leases.renew(trial)
    assert not one.done(trial, record(BASE))
    assert two.done(again, record(BASE))
    assert [t.state.name for t in two.storage.get_all_trials(two.study_id)].count("FAIL") == 1


def ended(worker: str) -> str:
    """The name of a worker of this machine as of one that runs no more."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    machine, _, moment = worker.rsplit(":", 2)
    return f"{machine}:{child}:{moment}"


def test_a_worker_of_this_machine_that_is_no_more_is_noticed_at_once(url: str) -> None:
    one, two = queue(url), queue(url)
    one.leases.worker = ended(one.leases.worker)
    assert one.take(BASE) is not None
    assert two.take_back() == [BASE.key]


def test_what_a_command_does_not_run_it_does_not_take_up(url: str) -> None:
    """It would not run it, and does not know with which settings it would be run."""
    one, other = queue(url), Queue(open_storage(url), "s", [OTHER])
    one.leases.worker = ended(one.leases.worker)
    assert one.take(BASE) is not None
    assert other.take_back() == []
    assert queue(url).take_back() == [BASE.key]


def test_a_failure_stays_until_it_is_forgotten(url: str) -> None:
    one = queue(url)
    trial = one.take(BASE)
    assert trial is not None
    one.failed(trial, "it does not fit")
    assert queue(url).states()[BASE.key] == "failed"
    assert one.errors() == {BASE.key: "it does not fit"}
    assert one.forget_failures() == 1
    one.fill()
    assert one.states()[BASE.key] == "waiting"
    assert one.errors() == {}


def test_a_trial_given_back_waits_again_and_an_imported_one_is_done(url: str) -> None:
    one = queue(url)
    trial = one.take(BASE)
    assert trial is not None
    one.give_back(BASE, trial)
    assert one.states()[BASE.key] == "waiting"
    assert one.add_done(record(BASE), BASE.group)
    assert not one.add_done(record(BASE), BASE.group)
    assert one.states()[BASE.key] == "done"
    assert one.take(BASE) is None


def test_between_two_trials_of_an_experiment_it_waits(url: str) -> None:
    one, other = queue(url), queue(url)
    trial = one.take(MAT)
    assert trial is not None
    # The first half of giving it back, which is all that another worker may see.
    one.storage.set_trial_state_values(trial, one.state.FAIL)
    assert MAT.key not in other.trials()
    assert other.states()[MAT.key] == "waiting"


def test_a_storage_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened"):
        open_storage("postgresql://nobody@localhost:1/none?connect_timeout=1")


def test_an_at_in_a_password_is_to_be_written_otherwise_and_none_of_it_is_shown() -> None:
    with pytest.raises(UserError, match="write %40 for an @ in the user or the password") as raised:
        open_storage("postgresql://me:sec@ret@localhost:1/none?connect_timeout=1")
    assert "sec" not in str(raised.value) and "ret" not in str(raised.value)
    assert "postgresql://me@localhost:1/none" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:se/c:r@et@host:5432/studies", "postgresql://me@host:5432/studies"),
        ("postgresql://host/s?user=me&password=secret", "postgresql://host/s?user=me"),
        ("postgresql://h/s?password=secret&user=me", "postgresql://h/s?user=me"),
        ("postgresql://me@host/studies", "postgresql://me@host/studies"),
        ("sqlite:////shared/a:b@c/study.db", "sqlite:////shared/a:b@c/study.db"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_trial_that_two_workers_added_is_struck_out_again(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    one, other = (Queue(storage, "s", ALL) for _ in range(2))
    one.fill()
    other._add(MAT.key, MAT.group)  # as if it had looked before the first one added anything
    other.fill()
    trials = storage.get_all_trials(one.study_id)
    assert [trial.state.name for trial in trials] == ["WAITING"] * len(ALL) + ["FAIL"]
    assert set(one.states().values()) == {"waiting"}
    assert one.take(MAT) is not None
    assert other.take(MAT) is None


def test_of_two_workers_that_take_at_the_same_moment_one_does(url: str) -> None:
    many = [replace(BASE, seed=seed) for seed in range(1, 31)]
    queues = [Queue(open_storage(url), "s", many) for _ in range(2)]
    queues[0].fill()
    together, taken = threading.Barrier(2), []

    def work(mine: Queue) -> None:
        for experiment in many:
            together.wait(timeout=60)
            if mine.take(experiment) is not None:
                taken.append(experiment.key)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(experiment.key for experiment in many)


def test_what_ran_with_other_settings_is_run_again_and_the_newest_is_shown(url: str) -> None:
    def with_print(text: str) -> Queue:
        made = Queue(open_storage(url), "s", ALL, fingerprints={e.key: text for e in ALL})
        made.fill()
        return made

    old = with_print("old")
    trial, failing = old.take(BASE), old.take(OTHER)
    assert trial is not None and failing is not None
    assert old.done(trial, {**record(BASE), "fingerprint": "old"})
    old.failed(failing, "too large")
    new = with_print("new")
    assert set(new.states().values()) == {"waiting"}
    assert with_print("old").states()[BASE.key] == "done"  # nor does the new one disturb the old
    again = new.take(BASE)
    assert again is not None and new.done(again, {**record(BASE), "fingerprint": "new"})
    shown = Queue(open_storage(url), "s", [])
    assert shown.records()[BASE.key]["fingerprint"] == "new"


def test_a_record_from_elsewhere_takes_the_place_of_a_failure_and_of_other_settings(
    url: str,
) -> None:
    mine = queue(url)
    trial = mine.take(BASE)
    assert trial is not None
    mine.failed(trial, "no memory")
    made = {**record(BASE), "fingerprint": "one"}
    assert mine.add_done(made, BASE.group)
    assert mine.states()[BASE.key] == "done" and not mine.errors()
    assert not mine.add_done(made, BASE.group)
    assert mine.add_done({**made, "fingerprint": "two"}, BASE.group)
    assert mine.records()[BASE.key]["fingerprint"] == "two"
