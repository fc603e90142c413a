"""Nothing lost: killed or stopped anywhere, a run ends as if it had never been."""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multibranch.data import PreparedData
from multibranch.directory import load_model
from multibranch.errors import Interrupted, UserError
from multibranch.text import TextPipeline, WordCounter, learn_words
from multibranch.training import Trainer
from resume import leavings

# Everything that has a state of its own: accumulation, R-Drop, patience, averaging, skipping.
FULL = {
    "max_updates": 18,
    "accumulate": 2,
    "r_drop": 1.0,
    "average": 2,
    "validate_every": 4,
    "patience": 30,
    "clip_norm": 1.0,
    "checkpoint_minutes": 0.0,
}


@pytest.fixture(scope="module")
def reference(
    toy: Path, tmp_path_factory: pytest.TempPathFactory, tiny: SimpleNamespace
) -> dict[str, Any]:
    """What a run leaves that was never stopped."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    tiny.run(toy, folder, **FULL)
    return leavings(folder)


def state(folder: Path) -> bytes:
    """The weights and Adam's moments that a run ended with."""
    return leavings(folder)["resume/state"]


def saved_update(folder: Path) -> int:
    places = sorted((folder / "resume").glob("update-*"))
    return int(places[-1].name[7:]) if places else 0


def test_killed_at_random_moments_it_ends_with_the_same_bits(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, reference: dict[str, Any]
) -> None:
    folder, dice = tmp_path / "run", random.Random(7)
    killed_at: list[int] = []
    process = tiny.start(lambda: tiny.run(toy, folder, **FULL))
    while len(killed_at) < 4:
        # A moment of chance once it has got further than the last time, or has just begun to.
        goal = saved_update(folder) + dice.randrange(3)
        while process.is_alive() and saved_update(folder) < goal:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.2))
        assert process.is_alive(), "the run ended before it was killed often enough"
        process.kill()  # SIGKILL
        process.join()
        killed_at.append(saved_update(folder))
        process = tiny.start(lambda: tiny.run(toy, folder, **FULL))
    process.join()
    assert process.exitcode == 0
    assert 0 < max(killed_at) < 18
    left = leavings(folder)
    assert left.keys() == reference.keys()
    assert [name for name in left if left[name] != reference[name]] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(
    toy: Path,
    tmp_path: Path,
    tiny: SimpleNamespace,
    reference: dict[str, Any],
    number: signal.Signals,
) -> None:
    folder = tmp_path / "run"
    quietly = {**FULL, "checkpoint_minutes": 60.0}

    def interrupted() -> None:
        outcome = tiny.run(toy, folder, **quietly)
        (tmp_path / "outcome").write_text(f"{outcome.stopped} {outcome.progress.update}")
        os._exit(0 if outcome.signal is None else 128 + outcome.signal)

    process = tiny.start(interrupted)
    while not (folder / "metrics.jsonl").is_file():
        time.sleep(0.005)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 128 + number
    stopped, update = (tmp_path / "outcome").read_text().split()
    assert stopped == number.name
    assert (folder / "resume" / f"update-{int(update):08d}").is_dir()
    assert not (folder / "config.json").exists()  # it is no model yet
    tiny.run(toy, folder, **quietly)
    left = leavings(folder)
    assert [name for name in left if left[name] != reference[name]] == []


def test_a_signal_in_the_last_moments_does_not_undo_the_end(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run", max_updates=3)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    update = trainer._update

    def last_update() -> None:
        update()
        if trainer.progress.update == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._update = last_update  # type: ignore[method-assign]
    outcome = trainer.run()
    assert not outcome.interrupted
    assert load_model(tmp_path / "run").settings["branches"] == 2
    assert outcome.late == signal.SIGTERM


def interrupt_twice(trainer: Trainer, number: int = signal.SIGINT, *, pause: float) -> None:
    update = trainer._update

    def impatient() -> None:
        os.kill(os.getpid(), number)
        time.sleep(pause)
        os.kill(os.getpid(), number)
        update()

    trainer._update = impatient  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_insists(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, number: signal.Signals
) -> None:
    trainer = Trainer(tiny.config(toy, tmp_path / "run"), PreparedData.open(toy), quiet=True)
    interrupt_twice(trainer, number, pause=1.1)
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        trainer.run()
    assert caught.value.status == 128 + number
    assert signal.getsignal(number) == handler


def test_the_same_signal_from_two_sides_is_one(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    trainer = Trainer(tiny.config(toy, tmp_path / "run"), PreparedData.open(toy), quiet=True)
    interrupt_twice(trainer, pause=0.01)
    outcome = trainer.run()
    assert (outcome.signal, outcome.progress.update) == (signal.SIGINT, 1)


def test_a_damaged_checkpoint_costs_only_what_came_after_the_one_before(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, reference: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    tiny.run(toy, folder, **{**FULL, "max_updates": 11})
    newest = max((folder / "resume").glob("update-*")) / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    tiny.run(toy, folder, **FULL)
    left = leavings(folder)
    # The end at update 11 was an additional validation; only the average and patience know of it.
    assert left["last/model.safetensors"] == reference["last/model.safetensors"]


def test_a_run_that_ended_ends_at_once_and_changes_nothing(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", average=2, validate_every=6)
    before = leavings(tmp_path / "run")
    outcome = tiny.run(toy, tmp_path / "run", average=2, validate_every=6)
    assert outcome.stopped == "20 updates are done"
    assert leavings(tmp_path / "run") == before


def test_a_run_that_ended_goes_on_when_it_is_given_more(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "short", max_updates=8)  # one epoch: the end is a validation anyway
    outcome = tiny.run(toy, tmp_path / "short", max_updates=16)
    assert outcome.progress.update == 16
    tiny.run(toy, tmp_path / "long", max_updates=16)
    assert state(tmp_path / "short") == state(tmp_path / "long")


def test_a_bfloat16_run_resumes_from_its_float32_masters(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    for updates in (4, 8):
        tiny.run(toy, tmp_path / "parts", max_updates=updates, precision="bfloat16")
    tiny.run(toy, tmp_path / "whole", max_updates=8, precision="bfloat16")
    assert state(tmp_path / "parts") == state(tmp_path / "whole")


def test_metrics_have_no_record_twice(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    config = tiny.config(toy, tmp_path / "run", log_every=1, checkpoint_minutes=0)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    write = trainer.keeping.checkpoints.write

    def write_until(state: object, record: dict) -> None:
        if record["update"] > 9:
            raise UserError("the disk died")
        write(state, record)  # type: ignore[arg-type]

    trainer.keeping.checkpoints.write = write_until  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the disk died"):
        trainer.run()
    assert max(record["update"] for record in tiny.records(tmp_path / "run")) > 9
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "upd')  # a line cut short
    tiny.run(toy, tmp_path / "run", log_every=1, checkpoint_minutes=0)
    found = [(record["kind"], record["update"]) for record in tiny.records(tmp_path / "run")]
    assert len(found) == len(set(found))
    assert [update for kind, update in found if kind == "train"] == list(range(1, 21))
    assert [update for kind, update in found if kind == "validation"] == [8, 16, 20]


def test_the_speed_after_resuming_counts_only_new_tokens(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=19)
    trainer = Trainer(tiny.config(toy, tmp_path / "run"), PreparedData.open(toy), quiet=True)
    trainer._set_up()
    seen, began = trainer.progress.tokens, trainer.progress.seconds
    trainer._epochs()
    trainer.folder.release()
    last = tiny.records(tmp_path / "run", "train")[-1]
    assert last["update"] == 20
    counted = last["tokens_per_second"] * (last["seconds"] - began)
    assert counted < 2 * (trainer.progress.tokens - seen) < seen / 4


def test_another_corpus_is_refused(
    toy: Path, other_toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=4)
    with pytest.raises(UserError, match=r"253 .*not those of the run|200 pairs and .* not 253"):
        tiny.run(other_toy, tmp_path / "run", max_updates=8)
    # The same corpus at another place is the same corpus.
    moved = tmp_path / "moved"
    moved.symlink_to(toy)
    assert tiny.run(moved, tmp_path / "run", max_updates=8).progress.update == 8


def test_another_vocabulary_is_refused(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    """Of as many words it would be taken for the run's own, and of more it has no weights."""
    tiny.run(toy, tmp_path / "run", max_updates=2)
    for words in (20, 40):
        other = Path(shutil.copytree(toy, tmp_path / f"words-{words}"))
        counter = WordCounter()
        counter.update({f"w{number}": 1 for number in range(words)})  # in another order
        text = PreparedData.open(toy).text
        TextPipeline(text.settings, learn_words(counter, size=words + 4)).save(other)
        with pytest.raises(UserError, match="not those of the run so far: they have another voc"):
            tiny.run(other, tmp_path / "run", max_updates=4)


def test_other_pairs_of_the_same_sizes_are_refused(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=2)
    other = Path(shutil.copytree(toy, tmp_path / "other"))
    for side in ("source", "target"):
        path = other / f"train.{side}.bin"
        content = bytearray(path.read_bytes())
        content[32:34], content[34:36] = content[34:36], content[32:34]  # two words change places
        path.write_bytes(content)
    with pytest.raises(UserError, match="they have as many pairs, but not the same"):
        tiny.run(other, tmp_path / "run", max_updates=4)
