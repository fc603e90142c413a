"""What a run shows: lines that stay, a live line on a terminal, and records that are JSON."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from multibranch.training.display import Display, clock
from multibranch.training.progress import Progress

RECORD = {
    "update": 1200,
    "epoch": 3,
    "loss": 4.5,
    "plain": 3.0,
    "norm": 0.75,
    "skipped": 0,
    "tokens_per_second": 12345.6,
    "seconds": 10.0,
}
PACE = {"update": 1207, "epoch": 4, "tokens_per_second": 999.0}


def shown(display: Display, *, terminal: bool) -> io.StringIO:
    text = io.StringIO()
    display.console = Console(file=text, force_terminal=terminal, width=200, highlight=False)
    return text


def test_progress_as_a_plain_line(tmp_path: Path) -> None:
    display = Display(tmp_path, tensorboard=False)
    text = shown(display, terminal=False)
    with display:
        display.progress(RECORD, share=0.25, left=3723)
        display.progress({**RECORD, "update": 1201}, share=0.26, left=3722)
    assert text.getvalue() == (
        "epoch   3  update   1,200  loss 4.500  ppl 20.09  12,346 tok/s  norm 0.75   25%"
        "  1:02:03 left\n"
    )  # the second came too soon after the first


def test_progress_on_a_terminal_is_redrawn(tmp_path: Path) -> None:
    display = Display(tmp_path, tensorboard=False)
    text = shown(display, terminal=True)
    with display:
        display.progress(RECORD, share=None, left=None)
        display.progress({**RECORD, "update": 1201, "skipped": 4}, share=None, left=None)
    assert "1,201" in text.getvalue() and "4 skipped" in text.getvalue()
    assert "\x1b[" in text.getvalue()


def test_the_line_on_a_terminal_moves_between_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    display = Display(tmp_path, tensorboard=False)
    text = shown(display, terminal=True)
    with display:
        display.progress(RECORD, share=None, left=None)
        now += 0.9
        assert not display.stands_still()
        now += 0.1
        assert display.stands_still()
        display.move(PACE, share=0.5, left=60)
        assert not display.stands_still()
    report = "epoch   4  update   1,207  loss 4.500  ppl 20.09  999 tok/s  norm 0.75"
    drawn = f"{report}   50%  1:00 left"
    assert drawn in text.getvalue()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1  # reports only


def test_the_line_goes_with_the_end_of_a_run_and_stays_where_it_broke_off(tmp_path: Path) -> None:
    display = Display(tmp_path, tensorboard=False)
    text = shown(display, terminal=True)
    with display:
        display.progress(RECORD, share=0.98, left=1)
        display.tell("averaged")
    erased = "\x1b[1A\x1b[2K"  # up a line, and all of it
    assert text.getvalue().endswith(erased)
    text = shown(display, terminal=True)
    display.__enter__()
    display.progress(RECORD, share=0.98, left=1)
    display.__exit__(ValueError, ValueError("it broke off"), None)
    assert not text.getvalue().endswith(erased)


def test_it_moves_before_the_first_report_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    display = Display(tmp_path, tensorboard=False)
    text = shown(display, terminal=True)
    with display:
        assert display.stands_still()
        display.move(PACE, share=None, left=None)
    assert "epoch   4  update   1,207  999 tok/s\x1b" in text.getvalue()


def test_without_a_terminal_no_line_can_stand_still(tmp_path: Path) -> None:
    for quiet, terminal in ((False, False), (True, True)):
        display = Display(tmp_path, quiet=quiet, tensorboard=False)
        text = shown(display, terminal=terminal)
        display.console.quiet = quiet
        with display:
            assert not display.stands_still()
        assert text.getvalue() == ""


def test_validation_shows_the_best_the_score_and_the_branches(tmp_path: Path) -> None:
    display = Display(tmp_path, tensorboard=False)
    text = shown(display, terminal=False)
    record = {"update": 5, "epoch": 1, "loss": 2.0, "plain": 1.0, "score": 31.25}
    record |= {"score_name": "BLEU", "similarity": {"a": 0.5, "b": 0.7}}
    display.validation(record, best=True)
    wanted = "epoch 1 update 5 valid loss 2.0000 ppl 2.72 BLEU 31.25 branches' cosine 0.600 *"
    assert " ".join(text.getvalue().split()) == wanted


def test_records_are_json_whatever_the_numbers(tmp_path: Path) -> None:
    display = Display(tmp_path, quiet=True, tensorboard=False)
    display.validation(
        {"update": 1, "epoch": 0, "loss": math.nan, "plain": math.inf, "similarity": {"a": 0.5}},
        best=False,
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse) == {
        "kind": "validation",
        "update": 1,
        "epoch": 0,
        "loss": None,
        "plain": None,
        "similarity": {"a": 0.5},
    }


def test_only_the_first_process_records(tmp_path: Path) -> None:
    display = Display(None, quiet=True)
    display.progress(RECORD, share=None, left=None)
    display.start(Progress())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("progress", "kept"),
    [
        (None, []),
        (Progress(update=10, validated=8), [("start", 0), ("train", 5), ("validation", 8)]),
        (
            Progress(update=20, validated=20),
            [("start", 0), ("train", 5), ("validation", 8), ("train", 15), ("validation", 20)],
        ),
    ],
)
def test_what_will_be_run_again_is_forgotten(
    tmp_path: Path, progress: Progress | None, kept: list[tuple[str, int]]
) -> None:
    written = [("start", 0), ("train", 5), ("validation", 8), ("train", 15), ("validation", 20)]
    lines = [json.dumps({"kind": kind, "update": update}) for kind, update in written]
    lines += [json.dumps({"kind": "averaged", "update": 20}), '{"kind": "tra']
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines))
    Display(tmp_path, quiet=True, tensorboard=False).start(progress)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["kind"], record["update"]) for record in found] == kept


@pytest.mark.parametrize(
    ("progress", "kept"), [(None, [(1, 3.0)]), (Progress(update=1), [(1, 2.0), (2, 3.0)])]
)
def test_curves_forget_it_too(
    tmp_path: Path, progress: Progress | None, kept: list[tuple[int, float]]
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for started, losses in ((None, [2.0, 2.5]), (progress, [3.0])):
        display = Display(tmp_path, quiet=True)
        display.start(started)
        first = 1 if started is None else started.update + 1
        with display:
            for update, loss in enumerate(losses, first):
                display.record("train", {"update": update, "loss": loss})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == kept


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (125, "2:05"), (3723, "1:02:03")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
