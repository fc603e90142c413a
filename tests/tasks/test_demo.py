"""The demo in miniature: everything it promises to write is there and holds what was measured."""

import json
import os
import shutil
import signal
import sys
from dataclasses import replace

import pytest

from multibranch.cli import main
from multibranch.tasks import demo, demo_report
from multibranch.tasks.evaluation import decode_split
from multibranch.training import Trainer

TINY = replace(
    demo.DemoSettings(),
    pairs=200,
    width=16,
    hidden=32,
    layers=1,
    tokens=512,
    first_updates=6,
    second_updates=4,
    validate_every=3,
    average=2,
    validation_sentences=20,
    test_sentences=12,
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "runs" / "demo"
    said: list[str] = []
    results = demo.run(folder, settings=TINY, tell=said.append)
    return folder, results, said


def test_results_hold_three_models_and_the_signature(ran):
    folder, _, _ = ran
    results = json.loads((folder / "results.json").read_text())
    for name in ("baseline", "continued", "mat"):
        assert set(results[name]) == {"bleu", "parameters", "seconds"}
        assert 0 <= results[name]["bleu"] <= 100
    assert results["signature"].startswith("nrefs:1|case:mixed")
    # A second branch adds 4d² + 4d parameters to each of the three attention layers.
    added = results["mat"]["parameters"] - results["baseline"]["parameters"]
    assert added == 3 * (4 * 16 * 16 + 4 * 16)
    assert results["continued"]["parameters"] == results["baseline"]["parameters"]


def test_it_says_how_many_trainings_are_to_come(ran):
    _, _, said = ran
    assert [line[:7] for line in said if " of " in line[:7]] == ["1 of 3:", "2 of 3:", "3 of 3:"]


def test_the_signature_stands_whole_on_a_line(ran, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(demo, "DemoSettings", lambda: TINY)
    monkeypatch.setattr(demo, "_train_all", lambda *_: ran[1]["stages"])
    monkeypatch.setattr(demo, "draw", lambda *_: None)
    assert main(["demo", "--output", str(tmp_path / "demo")]) == 0
    assert f"BLEU: {ran[1]['signature']}" in capsys.readouterr().out.splitlines()


def test_the_branches_start_as_copies_and_part(ran):
    _, results, _ = ran
    baseline, _, mat = results["stages"]
    assert baseline.similarity is None
    assert 0.9 < mat.similarity < 1


def test_the_printed_score_is_that_of_the_model_directory(ran):
    folder, results, _ = ran
    from multibranch.data import PreparedData

    output = decode_split(folder / "mat", PreparedData.open(folder / "corpus"))
    assert round(output.scores()["bleu"].value, 2) == results["mat"]["bleu"]


@pytest.mark.parametrize("part", ["_epochs", "_finish"])
def test_sigterm_ends_it_with_the_status_of_training(part, tmp_path, monkeypatch):
    def stopped(trainer):
        os.kill(os.getpid(), signal.SIGTERM)
        return run(trainer)

    run = getattr(Trainer, part)
    monkeypatch.setattr(Trainer, part, stopped)
    monkeypatch.setattr(demo, "DemoSettings", lambda: TINY)
    assert main(["demo", "--output", str(tmp_path / "demo")]) == 143


def test_the_attention_is_that_of_the_translation_in_the_report(ran, monkeypatch):
    folder, results, _ = ran
    monkeypatch.setattr(demo, "draw", lambda *_: None)
    monkeypatch.setattr(demo, "write_page", lambda *_: None)
    asked = []
    real = demo.inspect
    monkeypatch.setattr(demo, "inspect", lambda *a, **o: asked.append(o) or real(*a, **o))
    from multibranch.data import PreparedData
    from multibranch.decoding.translator import saved_options

    data = PreparedData.open(folder / "corpus")
    demo._draw_attention(results["stages"][-1], data, folder, print)
    assert asked == [saved_options(folder / "mat")] and asked[0]["beam"]


def test_the_report_shows_every_model_and_the_attention(ran):
    folder, results, _ = ran
    page = (folder / "report.html").read_text()
    for stage in results["stages"]:
        assert stage.title in page
        assert f"{stage.bleu:.2f}" in page
    assert "data:image/png;base64," in page
    assert "http://" not in page and "https://" not in page
    assert (folder / "attention.html").is_file()
    assert (folder / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_chart_says_where_the_transformer_was_branched_out(ran):
    chart = (ran[0] / "report.html").read_text().split("<svg")[1].split("</svg>")[0]
    assert f">{TINY.first_updates}: branched out</text>" in chart
    assert chart.count('stroke-dasharray="3 4"') == 1


def test_the_report_fits_a_phone(ran):
    sync = pytest.importorskip("playwright.sync_api")
    if shutil.which("chromium") is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    folder, _, _ = ran
    with sync.sync_playwright() as player:
        browser = player.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": 390, "height": 800})
        tab.goto((folder / "report.html").as_uri())
        wide = tab.evaluate("document.documentElement.scrollWidth")
        letters = tab.locator("svg text").first.bounding_box()["height"]
        browser.close()
    assert wide == 390
    assert letters > 9  # pixels: the chart shrinks, what is written in it may not vanish


def test_without_matplotlib_all_but_the_picture_is_written(ran, tmp_path, monkeypatch, capsys):
    folder, stages = tmp_path / "demo", ran[1]["stages"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(demo, "DemoSettings", lambda: TINY)
    monkeypatch.setattr(demo, "_train_all", lambda *_: stages)
    assert main(["demo", "--output", str(folder)]) == 0
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if "matplotlib" in line]
    assert line.startswith("There will be no attention.png.")
    assert "pip install 'multibranch[study]'" in line
    assert "attention.html" in shown.out and "attention.png" not in shown.out
    assert json.loads((folder / "results.json").read_text())["mat"] == ran[1]["mat"]
    assert (folder / "attention.html").is_file()
    assert "<img" not in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("difference", "significant", "expected"),
    [(1.5, True, "1.50 BLEU above"), (-0.4, False, "0.40 BLEU below")],
)
def test_the_verdict_tells_what_was_measured(difference, significant, expected):
    found = {"difference": difference, "p_value": 0.03, "significant": significant}
    line = demo_report.verdict({"mat_against_continued": found})
    assert expected in line
    assert ("more than chance" in line) == significant


def test_evaluate_prints_the_keys_it_promises(ran, capsys):
    folder, results, _ = ran
    words = ["evaluate", str(folder / "mat"), "--json"]
    assert main([*words, "--compare", str(folder / "baseline")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"bleu", "multi_bleu", "chrf", "ter", "signatures", "comparison"} <= set(found)
    assert found["bleu"] == results["mat"]["bleu"]
    assert "multi-bleu" in found["signatures"]["multi_bleu"]
    assert 0 < found["comparison"]["p_value"] <= 1


def test_evaluate_over_seeds_gives_mean_and_deviation(ran, capsys):
    folder, _, _ = ran
    models = [str(folder / "baseline"), str(folder / "continued")]
    assert main(["evaluate", *models, "--json"]) == 0
    seeds = json.loads(capsys.readouterr().out)["seeds"]["chrf"]
    assert seeds["mean"] == pytest.approx(sum(seeds["values"]) / 2)
    assert seeds["deviation"] == pytest.approx(
        abs(seeds["values"][0] - seeds["values"][1]) / 2**0.5
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no model directory"),
        (["MAT", "--limit", "0"], "--limit must be at least 1"),
        (["MAT", "--branches", "7"], "cannot decode with branches 7"),
        (["MAT", "--branches", "one"], "--branches takes numbers"),
        (["MAT", "--data", "nowhere"], "nowhere"),
        (["MAT", "--valid-only"], "--valid-only is for models that write code"),
    ],
)
def test_evaluate_says_what_is_wrong_in_one_line(ran, capsys, words, message):
    folder, _, _ = ran
    words = [str(folder / "mat") if word == "MAT" else word for word in words]
    assert main(["evaluate", *words]) == 2
    errors = capsys.readouterr().err.strip()
    assert message in errors
    assert len(errors.splitlines()) == 1
