"""Reports from records: the numbers, the layout, the files; the page in a real browser."""

import gzip
import io
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from multibranch.cli import main
from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.metrics import multi_bleu
from multibranch.metrics.score import mean_and_deviation
from multibranch.study import plots
from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.study.layout import command_of, ordered, sheets
from multibranch.study.markdown import markdown, verdicts
from multibranch.study.page import page
from multibranch.study.paper import tables
from multibranch.study.plan import Grid, Study, choose, load_study
from multibranch.study.plots import (
    figures,
    line_look,
    mean_curve,
    perplexity_range,
    score_range,
)
from multibranch.study.reporting import from_storage, read_recorded, write_recorded
from multibranch.study.results import CellResult, Results, references, signed
from multibranch.study.storage import Queue, open_storage
from multibranch.study.trial_folder import HYPOTHESES, write_lines

SIGNATURE = "multi-bleu|for:tests"


def made_record(study: Study, experiment: Experiment, score: float) -> dict:
    """A record as a trial writes it."""
    second = experiment.start != "scratch"
    return {
        "study": study.name,
        "key": experiment.key,
        "cell": experiment.cell,
        "fingerprint": "0" * 6,
        "experiment": asdict(experiment),
        "command": f"multibranch study run {study.name} --only {experiment.key}",
        "task": "translation",
        "parameters": 1_000_000 * experiment.branches,
        "updates": 100 if second else 200,
        "wall_seconds": 5.0,
        "validation_plain": 1.5,
        "brevity_penalty": 0.98,
        "curve": [[10 * n, 3.0, 2.0 - n / 200] for n in range(1, 101)],
        "mean_similarity": None if experiment.branches == 1 else 1 - experiment.drop_branch,
        "valid_bleu": {"1": score - 1},
        "device": "a machine",
        "scores": {"multi_bleu": {"value": score, "signature": SIGNATURE}},
    }


def score_of(experiment: Experiment) -> float:
    """A number that tells every experiment from the others."""
    start = {"scratch": 0.0, "continued": 0.5, "proximal": 1.0, "pruned": 0.7}[experiment.start]
    return 30 + start + experiment.drop_branch + experiment.branches / 100 + experiment.seed / 10


@pytest.fixture(scope="module")
def results() -> Results:
    """Tables 1 and 2 in miniature, three seeds of one direction and one of the other."""
    study = load_study("multi30k-small")
    chosen = [e for e in study.experiments() if e.corpus == "de-en" or e.seed == 1]
    records = [made_record(study, e, score_of(e)) for e in chosen]
    comparisons = {}
    for record in records:
        experiment = Experiment(**record["experiment"])
        for other in references(experiment).values():
            difference = score_of(experiment) - score_of(other)
            comparisons[f"{experiment.key} > {other.key}"] = {
                "difference": difference,
                "significant": abs(difference) > 0.7,
            }
    return Results(study, records, comparisons)


@pytest.fixture(scope="module")
def web(results: Results) -> str:
    """Its page."""
    return page(results)


def cell_rows(text: str) -> list[dict[str, str]]:
    """The rows of the last tables of cells in Markdown, by their columns' names."""
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line in text[text.rindex("# Every cell") :].splitlines():
        words = line.strip("| ").split(" | ")
        if words[-1] == "key":
            names = words
        elif line.startswith("| "):
            rows.append(dict(zip(names, words, strict=True)))
    return rows


def test_a_size_that_no_trial_has_recorded_is_left_open() -> None:
    """As of encoders, whose trials do not count their parameters."""
    study = load_study("multi30k-small")
    first, second = study.experiments(seeds=1)[:2]
    records = [made_record(study, first, 30.0), made_record(study, second, 31.0)]
    del records[0]["parameters"]
    found = Results(study, records)
    sizes = [row["parameters"] for row in cell_rows(markdown(found))]
    assert sizes == ["–", f"{records[1]['parameters']:,}"]
    assert "0.0M" not in page(found) and f">{second.branches}.0M<" in page(found)


def test_the_cosine_of_the_whole_model_is_not_that_of_a_pruned_one() -> None:
    study = load_study("ted-beyond")
    pruned = next(e for e in study.experiments(seeds=1) if e.keep == 1)
    assert pruned.parent is not None
    found = Results(study, [made_record(study, e, 30.0) for e in (pruned.parent, pruned)])
    assert [row["cosine"] for row in cell_rows(markdown(found))] == ["0.700", "–"]


@pytest.mark.parametrize(("cosine", "shown"), [(-0.006, "−0.006"), (-0.0003, "0.000")])
def test_a_cosine_below_zero_has_the_minus_of_the_differences(cosine: float, shown: str) -> None:
    study = load_study("ted-beyond")
    mat = next(e for e in study.experiments(seeds=1) if e.branches > 1 and e.keep is None)
    record = {**made_record(study, mat, 30.0), "mean_similarity": cosine}
    (row,) = cell_rows(markdown(Results(study, [record])))
    assert row["cosine"] == shown


def test_the_control_follows_the_baseline_and_rates_rise() -> None:
    study = load_study("ted-paper")  # whose ρ=0.3, with more seeds, stands before the others
    found = Results(study, [made_record(study, e, 30.0) for e in study.experiments(seeds=1)])
    assert [(c.experiment.start, c.experiment.drop_branch) for c in ordered(found)] == [
        ("scratch", 0.0),
        ("continued", 0.0),
        *(("proximal", rate) for rate in (0.0, 0.1, 0.2, 0.3)),
        ("scratch", 0.3),
    ]


def test_a_cell_is_the_mean_of_its_seeds_and_differs_from_both_references(
    results: Results,
) -> None:
    cell = results.cells["de-en.proximal.3-256-1024.m4.l4+4.r0.3"]
    assert cell.mean == pytest.approx(31.53)
    assert cell.deviation == pytest.approx(0.1)
    assert cell.seeds == [1, 2, 3]
    baseline, continued = cell.against["baseline"], cell.against["continued"]
    assert baseline.mean == pytest.approx(1.32)
    assert continued.mean == pytest.approx(0.82)
    assert (continued.seeds, continued.tested, continued.above) == (3, 3, 3)
    assert str(continued) == "+0.82▲"
    assert cell.against["baseline"].deviation == pytest.approx(0.0)
    plain = results.cells["de-en.proximal.3-256-1024.m4.l4+4.r0"]
    assert plain.against["continued"].mark == ""
    assert results.cells["en-de.scratch.1-256-1024.m4.l4+4.r0"].deviation is None


def test_deviation_is_the_samples_and_signs_are_as_wide_as_each_other() -> None:
    assert mean_and_deviation([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_deviation([4.0]) == (4.0, None)
    assert [signed(v) for v in (0.5, -0.5, -0.001)] == ["+0.50", "−0.50", "+0.00"]


def test_our_table_has_the_papers_rows_and_columns(results: Results) -> None:
    found = {(sheet.number, sheet.corpus): sheet for sheet in sheets(results.study, results)}
    assert set(found) == {(n, corpus) for n in (1, 2) for corpus in ("de-en", "en-de")}
    for (number, corpus), sheet in found.items():
        paper = tables()[number - 1]
        assert [b.heading for b in sheet.blocks] == [part.heading for part in paper.parts]
        for block, part in zip(sheet.blocks, paper.parts):
            assert block.columns == part.columns
            assert [line.label for line in block.lines] == [row.label for row in part.rows]
            for line, row in zip(block.lines, part.rows):
                assert line.paper == row.cells
                for ours, cell in zip(line.ours, row.cells):
                    assert ours is not None
                    one = ours.experiment
                    assert (one.branches, one.hidden) == (cell.branches, cell.hidden)
                    assert (one.drop_branch, one.corpus) == (cell.drop_branch, corpus)
                    assert (one.start == "proximal") == cell.proximal


def test_markdown_and_page_have_every_cell_and_the_command_that_repeats_it(
    results: Results, web: str
) -> None:
    text = markdown(results)
    assert "| (3,1024) | 3/256/1024 | 31.23±0.10 (+0.52)" in text
    assert "| 35.33 | 35.77 | 35.94 | 35.83 |" in text  # the paper's, in the same row
    assert SIGNATURE in text and SIGNATURE in web
    assert {len(cell.seeds) for cell in results.cells.values()} == {1, results.study.seeds}
    for cell in results.cells.values():
        # Where only some of the study's seeds were run, no others are run again.
        some = " ".join(f"{cell.cell}.s{seed}" for seed in cell.seeds)
        which = cell.cell if len(cell.seeds) == results.study.seeds else some
        assert f" | `{which}` |\n" in text
        assert f"><code>{which}</code></td></tr>" in web
    command = "multibranch study run multi30k-small --only KEY"
    assert f"\n{command}\n" in text and text.count("multibranch study run") == 1
    assert f"<code>{command}</code>" in web and web.count("multibranch study run") == 1
    for figure in ("Score against ρ", "Learning curves", "Branch similarity against ρ"):
        assert web.count(f"<b>{figure} (de-en).</b>") == 1
    assert web.count("<svg") == 6
    best = "de-en: the best MAT on the validation set (proximal initialisation 4/256/"
    assert best in text
    # Nothing comes from elsewhere.
    assert "<script" not in web and "<link" not in web and "src=" not in web


def test_the_papers_mark_is_explained_where_it_stands(web: str) -> None:
    sections = web.split("<section>")
    assert [("△</td>" in part) for part in sections] == [("△: its usual" in p) for p in sections]
    assert web.count("△</td>") == 2  # Table 1 on two corpora


def test_a_row_is_named_once_unless_the_model_is_called_otherwise_here(results: Results) -> None:
    text, web = markdown(results), page(results)
    assert text.count("| model | ρ=0.0 | ρ=0.1 |") == 4  # Table 1: two parts, two corpora
    assert text.count("| paper's row | here | ρ=0.0 | ρ=0.1 |") == 2
    assert web.count("<th></th><th></th>") == 2
    for made in (text, web):  # what stands beside a score is explained once
        assert made.count("the difference to the continued baseline if the model started") == 1
    study = load_study("multi30k-ffn")
    many = Results(study, [made_record(study, e, 30.0) for e in study.experiments(seeds=1)])
    assert "| 1/2/1024 | 1/256/1024, N_f=2 | 30.00 " in markdown(many)
    study = load_study("multi30k-heads")
    study.grids = study.grids[1:]  # without the baseline
    alone = Results(study, [made_record(study, e, 30.0) for e in study.experiments(seeds=1)])
    for made in (markdown(alone), page(alone)):
        assert "the difference to the baseline" not in made


def test_cells_that_were_run_with_other_options_have_commands_of_their_own(
    results: Results,
) -> None:
    records = [dict(record) for record in results.records]
    for record in records:
        if record["cell"] == "de-en.scratch.1-256-1024.m4.l4+4.r0":
            record["command"] += " --device cpu"
    text, web = (make(Results(results.study, records)) for make in (markdown, page))
    own = "multibranch study run multi30k-small --only de-en.scratch.1-256-1024.m4.l4+4.r0 --device"
    for made in (text, web):
        assert made.count("multibranch study run multi30k-small --only KEY") == 1
        assert made.count(f"{own} cpu") == 1


def test_cells_that_the_papers_tables_do_not_have_stand_beside_them(results: Results) -> None:
    text = markdown(results)
    beside = text[text.index("## Beside the paper's tables") : text.index("## Every cell")]
    keys = re.findall(r"\| `(.*)` \|\n", beside)
    assert len(keys) == 4 and all(".continued." in key for key in keys)
    assert beside.index("**de-en**") < beside.index("**en-de**")
    assert "| cosine |" not in beside  # which none of them has
    folded = text[text.index("<details>\n<summary>All ") : text.index("\n</details>")]
    assert len(re.findall(r"\| `(.*)` \|\n", folded)) == len(results.cells)


def test_what_is_missing_shows_as_missing(results: Results) -> None:
    few = Results(results.study, [r for r in results.records if r["cell"].endswith(".r0.1")])
    text = markdown(few)
    assert "| 1/256/1024 | – | 30.31±0.10 | – | – | 35.04 |" in text
    unscored = [{**record, "scores": {}} for record in results.records]
    assert Results(results.study, unscored).cells == {}


def test_a_recorded_study_reads_back_with_shorter_curves(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "study-multi30k-small.json"
    write_recorded(path, results)
    bench = Bench(study=results.study, output=tmp_path)
    again = read_recorded(path, bench)
    assert markdown(again) == markdown(results)
    curve = again.records[0]["curve"]
    assert len(curve) <= 40 and curve[-1] == results.records[0]["curve"][-1]
    assert json.loads(path.read_text(encoding="utf-8"))["signature"] == SIGNATURE
    # A training that fell apart has nulls for its last losses, and the model of its best one.
    fell = {**results.records[0], "curve": [*results.records[0]["curve"], [1010, None, None]]}
    write_recorded(path, Results(results.study, [fell]))
    assert read_recorded(path, bench).records[0]["curve"][-1] == [1010, None, None]
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_recorded(tmp_path / "none.json", bench)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="is no recorded study"):
        read_recorded(path, bench)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.update(study="other"), "records the study other, not multi30k"),
        (lambda content: content.update(trials=[1]), "is no recorded study: a trial is no object"),
        (lambda content: content.update(trials=30), "its trials are no list"),
        (lambda content: content["trials"][0].pop("device"), "it has no 'device'"),
        (lambda content: content["trials"][0].pop("curve"), "it has no 'curve'"),
        (lambda content: content["trials"][0].pop("command"), "it has no 'command'"),
        (lambda content: content["trials"][0].update(curve=[[1, "3", 2.0]]), "without numbers"),
        (lambda content: content["trials"][0].update(curve=[[None, 3, 2.0]]), "without numbers"),
        (lambda content: content["trials"].append(content["trials"][0]), "it has a trial twice"),
        (lambda content: content["trials"][0].update(parameters="many"), "parameters 'many'"),
        (lambda content: content["trials"][0].update(wall_seconds=[5]), r"wall_seconds \[5\]"),
        (lambda content: content["trials"][0].update(valid_bleu={"1": None}), "valid_bleu 1 None"),
        (lambda content: content["trials"][0].update(valid_bleu=7), "is no recorded study"),
        (lambda content: content["trials"][0].update(averaged_plain="x"), "averaged_plain 'x'"),
        (
            lambda content: content["trials"][0]["scores"]["multi_bleu"].update(value=math.nan),
            "score multi_bleu nan",
        ),
        (
            lambda content: content["trials"][0]["scores"]["multi_bleu"].update(signature=None),
            "signature None of multi_bleu",
        ),
        (
            lambda content: next(iter(content["comparisons"].values())).update(significant="no"),
            "does not say how de-en.* > de-en.* came out",
        ),
        (
            lambda content: content["trials"][0]["experiment"].update(branches="1"),
            "experiment.branches must be a whole number, not '1'",
        ),
    ],
)
def test_a_recorded_study_that_is_damaged_or_another_is_named(
    results: Results, tmp_path: Path, change: Callable[[dict], None], said: str
) -> None:
    path = tmp_path / "study.json"
    write_recorded(path, results)
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_recorded(path, Bench(study=results.study, output=tmp_path))


def _all_of(name: str, scores: dict[str, float]) -> Results:
    """A study with every trial done, all with these scores."""
    study = load_study(name)
    content = {name: {"value": value, "signature": name} for name, value in scores.items()}
    records = [{**made_record(study, e, 1.0), "scores": content} for e in study.experiments()]
    return Results(study, records)


def test_a_column_of_another_score_or_test_set_has_no_number_that_is_not_its_own() -> None:
    scores = {"sentence_bleu": 20.0, "pov": 80.0, "bleu": 30.0, "multi_bleu": 31.0}
    code = _all_of("code", scores)
    [sheet] = sheets(code.study, code)
    means = [[c and c.mean for c in line.ours] for line in sheet.blocks[0].lines]
    assert means == [[None] * 4, *[[20.0, 80.0, 20.0, 80.0]] * 5]
    # Its test set is newstest2019, of the paper's three.
    news = _all_of("wmt19-en-de", scores)
    [sheet] = sheets(news.study, news)
    for line in sheet.blocks[0].lines:
        assert [c and c.mean for c in line.ours] == [None, None, None, 30.0]
    without = Results(code.study, [{**r, "scores": {"sentence_bleu": r["scores"]["sentence_bleu"]}}
                                   for r in code.records])  # fmt: skip
    assert [c is None for c in sheets(code.study, without)[0].blocks[0].lines[1].ours] == [
        False, True, False, True,
    ]  # fmt: skip


def test_corpora_for_different_tasks_share_the_papers_table() -> None:
    results = _all_of("iwslt-es-fr", {"bleu": 30.0})
    [sheet] = sheets(results.study, results)
    assert sheet.corpus.split(", ") == [corpus.name for corpus in results.study.corpora]
    for line in sheet.blocks[0].lines:
        assert all(cell is not None for cell in line.ours)
    assert page(results).count("<h2>Table 3 of the paper, on iwslt14-es-en, iwslt14-en-es, ") == 1


@pytest.mark.parametrize(
    ("above", "told"),
    [
        (0.52, "0.52 above the continued baseline"),
        (-0.004, "as much as the continued baseline"),
        (-0.3, "0.30 below the continued baseline"),
    ],
)
def test_the_verdict_says_how_far_a_model_is_from_its_control(above: float, told: str) -> None:
    study = load_study("ted-de-en")
    (_, mat) = choose(study.experiments(), ["de-en.proximal.3-256-2048.m4.l6+6.r0.3.s1"])
    scores = {mat: 30 + above, mat.continued: 30.0}
    results = Results(study, [made_record(study, one, score) for one, score in scores.items()])
    (line,) = verdicts(results)
    assert f"ρ=0.3) scores {30 + above:.2f}, {told}." in line


def test_the_verdict_prefers_models_of_as_many_seeds_as_there_are() -> None:
    study = load_study("ted-de-en")
    one = choose(study.experiments(), ["de-en.proximal.3-256-2048.m4.l6+6.r0.3.s1"])[-1]
    high = replace(one, drop_branch=0.1)
    three = [made_record(study, replace(one, seed=seed), 31.0) for seed in (1, 2, 3)]
    three += [made_record(study, replace(one.baseline, seed=seed), 30.0) for seed in (1, 2, 3)]
    lucky = made_record(study, high, 33.0)  # on the validation set, too
    (line,) = verdicts(Results(study, [*three, lucky]))
    assert "ρ=0.3; among those with 3 seeds) scores 31.00 ± 0.00, 1.00 above the baseline" in line
    (line,) = verdicts(Results(study, three))
    assert line.startswith("de-en: the best MAT on the validation set (proximal initialisation ")
    assert "ρ=0.3) scores 31.00" in line
    (line,) = verdicts(Results(study, [*three[3:], lucky]))  # no model has as many: it is said
    assert "ρ=0.1) scores 33.00 (1 seed), 3.00 above the baseline" in line


def test_what_was_not_run_is_said(results: Results) -> None:
    everything = {experiment.cell for experiment in results.study.experiments()}
    said = "cells have not been run"
    assert (said in markdown(results)) == (everything != set(results.cells))
    some = [record for record in results.records if record["experiment"]["seed"] == 1][:3]
    assert f"{len(everything) - 3} of the study's {len(everything)} {said}" in markdown(
        Results(results.study, some)
    )
    assert "One seed does not show how much seeds differ" in markdown(Results(results.study, some))
    last = max(results.cells)
    but_one = [r for r in results.records if Experiment(**r["experiment"]).cell != last]
    assert f" 1 of the study's {len(everything)} cells has not been run." in markdown(
        Results(results.study, but_one)
    )


def test_a_figures_words_are_true_of_what_it_shows(results: Results) -> None:
    def said(study: Study, records: list[dict]) -> str:
        title, text, svg = figures(Results(study, records))[0]
        assert title.startswith("Score against ρ")
        assert (">continued<" in svg) == ("Continued:" in text)
        return text

    control = "Continued: the baseline, trained further."
    assert control in said(results.study, results.records)
    low = [dict(record) for record in results.records]
    for record in low:
        if record["cell"].endswith("de-en.scratch.4-256-2048.m4.l4+4.r0.3"):
            record["scores"] = {"multi_bleu": {"value": 3.0, "signature": SIGNATURE}}
    assert said(results.study, low).endswith(" Outside, far below the others: 1 model.")
    study = load_study("multi30k-ffn")
    records = [made_record(study, e, score_of(e)) for e in study.experiments(seeds=1)]
    text = said(study, records)
    assert "Continued" not in text and "Outside" not in text


def test_pruned_models_are_drawn_over_the_branches_they_keep() -> None:
    study = load_study("ted-beyond")
    records = [made_record(study, e, score_of(e)) for e in study.experiments()]
    web = page(Results(study, records))
    assert "Score after pruning" in web
    assert "branches kept" in web


def test_figures_leave_few_models_outside(results: Results) -> None:
    study = results.study
    some = [e for e in study.experiments() if e.corpus == "de-en" and e.seed == 1][:6]

    def cells(*scores: float) -> list[CellResult]:
        records = [made_record(study, e, score) for e, score in zip(some, scores)]
        return list(Results(study, records).cells.values())

    assert score_range(cells(30, 30.5, 31, 31.5, 3)) == (30, 31.5)  # one fell apart
    assert score_range(cells(2.2, 2.3, 1.1, 1.0, 0.8, 0.0)) == (0, 2.3)  # all are far apart
    low, high = perplexity_range([36.0, 54.0, 72.0])
    assert low < 36 and high > 72
    looks = [tuple(line_look(number).items()) for number in range(16)]
    assert len(set(looks)) == 16


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Results], dict[str, list]]:
    """The axes of every figure, by its title."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    made: list[list] = []

    def keep(draw: Callable, *, x: str, y: str, panels: int = 1) -> str:
        axes = list(Figure().subplots(1, panels, squeeze=False).flat)
        draw(axes if panels > 1 else axes[0])
        made.append(axes)
        return "<svg/>"

    def draw(results: Results) -> dict[str, list]:
        made.clear()
        titles = [title for title, _, _ in figures(results)]
        return dict(zip(titles, made, strict=True))

    monkeypatch.setattr(plots, "_figure", keep)
    return draw


def _lines(axis: Any) -> dict[str, Any]:
    handles, labels = axis.get_legend_handles_labels()
    return {name: getattr(one, "lines", [one])[0] for name, one in zip(labels, handles)}


def test_every_line_of_a_figure_can_be_told_from_the_others(drawn: Callable) -> None:
    mats = Grid(starts=["proximal"], branches=[3], shapes=["64/128"], drop_branch=[0.0, 0.2])
    mats.keep = [1, 2]
    both = {"starts": ["scratch", "proximal"], "r_drop": [0.0, 5.0]}
    grids = [
        replace(mats, branches=[1, 3], shapes=["64/128", "32/64"], **both),
        replace(mats, encoder_layers=2, decoder_layers=2),
        replace(mats, heads=[2], ffn_branches=[2]),
    ]
    study = replace(load_study("builtin"), grids=grids, seeds=1)
    records = [made_record(study, e, score_of(e)) for e in study.experiments()]
    found = drawn(Results(study, records))
    assert len(found) == 4
    for title, axes in found.items():
        looks: dict[str, set] = {}
        for axis in axes:
            lines = _lines(axis)
            for label, line in lines.items():
                looks.setdefault(label, set()).add((line.get_color(), line.get_linestyle()))
                along = list(line.get_xdata())
                assert label == "continued" or along == sorted(set(along)), (title, label)
        assert all(len(each) == 1 for each in looks.values()), title  # the same in all panels
        assert len(set.union(*looks.values())) == len(looks), title


def test_learning_curves_are_named_in_the_order_of_the_tables(drawn: Callable) -> None:
    study = load_study("builtin")
    records = [made_record(study, e, score_of(e)) for e in study.experiments()]
    (axis,) = drawn(Results(study, records))["Learning curves"]
    assert [name.partition(", ρ")[0] for name in _lines(axis)] == [
        "Transformer",
        "Transformer, continued",
        "MAT $N_a=2$, proximal",
        "MAT $N_a=3$, proximal",
        "MAT $N_a=2$, from scratch",
        "MAT $N_a=3$, from scratch",
    ]


def test_a_learning_curve_says_that_heads_are_what_was_dropped(drawn: Callable) -> None:
    study = load_study("multi30k-few")
    chosen = choose(study.experiments(1), ["heads"])
    records = [made_record(study, e, 30 + e.branches) for e in chosen]
    (axis,) = drawn(Results(study, records))["Learning curves"]
    assert list(_lines(axis)) == ["Transformer", "MAT $N_a=3$, proximal, ρ=0.3 of heads"]


def test_the_line_of_the_baseline_continued_is_inside_the_figure(drawn: Callable) -> None:
    study = load_study("builtin")
    scores = {"continued": 29.0, "proximal": 30.5, "scratch": 30.2, "pruned": 30.0}
    records = [made_record(study, e, scores[e.start]) for e in study.experiments()]
    for axis in drawn(Results(study, records))["Score against ρ"]:
        low, high = axis.get_ylim()
        assert low < _lines(axis)["continued"].get_ydata()[0] == 29.0 < high


def test_a_learning_curve_is_the_mean_at_the_same_updates(
    drawn: Callable, results: Results
) -> None:
    # Of a longer run every other point is written down: the third point of each is another update.
    long = [[10 * n, 3.0, 1.0 + n / 100] for n in range(2, 52, 2)]
    short = [[10 * n, 3.0, 1.0 + n / 100] for n in range(1, 36)]
    for curves in ([long, short], [short, long]):
        updates, values = mean_curve(curves)
        assert updates[0] == 20 and updates[-1] in (340, 350)
        assert values == pytest.approx([math.exp(1 + update / 1000) for update in updates])
    broken = [[10, 3.0, 2.0], [20, None, None], [30, 9.0, math.inf], [40, 9.0, 5e5]]
    assert mean_curve([broken]) == ([], [])
    assert mean_curve([broken, short])[0] == [point[0] for point in short]
    # One model that fell apart does not keep the others from being drawn.
    some = [r for r in results.records if r["experiment"]["corpus"] == "de-en"]
    fell = {**some[0], "curve": [*some[0]["curve"][:-1], [1000, None, None]]}
    assert "Learning curves (de-en)" in drawn(Results(results.study, [fell, *some[1:]]))
    lost = {**some[0], "curve": broken}
    assert "Learning curves (de-en)" in drawn(Results(results.study, [lost, *some[1:]]))


def test_pruned_models_are_named_by_what_they_were_pruned_from() -> None:
    experiments = load_study("builtin").experiments(1)
    titles = [experiment.title() for experiment in experiments]
    assert "MAT from scratch 3/64/128, ρ=0.2, pruned to 1 branch" in titles
    assert "MAT, proximal initialisation 3/64/128, ρ=0.2, pruned to 1 branch" in titles
    assert len(set(titles)) == len(experiments)


def test_models_that_differ_in_their_heads_alone_are_named_by_them(results: Results) -> None:
    study = load_study("multi30k-heads")
    experiments = study.experiments(seeds=1)
    assert len({(e.corpus, study.title_of(e)) for e in experiments}) == len(experiments)
    many = Results(study, [made_record(study, e, 30.0) for e in experiments])
    for made in (markdown(many), page(many)):
        assert {f"M={heads}, ρ=0.1" in made for heads in (1, 2, 4)} == {True}
    assert not any("M=" in results.study.title_of(e) for e in results.study.experiments())


@pytest.fixture(scope="module")
def open_page() -> Callable:
    if shutil.which("chromium") is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    sync = pytest.importorskip("playwright.sync_api")
    image = pytest.importorskip("PIL.Image")  # which matplotlib brings

    def measure(path: Path, *, scheme: str, width: int) -> dict:
        with sync.sync_playwright() as player:
            browser = player.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            said: list[str] = []
            tab.on("console", lambda message: said.append(message.text))
            tab.on("request", lambda request: said.append(request.url))
            tab.goto(path.as_uri())
            found = tab.evaluate(
                """() => ({
                    wide: document.documentElement.scrollWidth,
                    paper: getComputedStyle(document.body).backgroundColor,
                    text: getComputedStyle(document.querySelector('svg text')).fill,
                    tables: document.querySelectorAll('table.sheet').length,
                    drawn: [...document.querySelectorAll('svg')].every(
                        (svg) => svg.getBoundingClientRect().height > 100),
                    letters: Math.min(...[...document.querySelectorAll('svg text')].map(
                        (text) => text.getBoundingClientRect().height)),
                    commands: Math.max(...[...document.querySelectorAll('.command code')].map(
                        (code) => code.getBoundingClientRect().right)),
                })"""
            )
            figure = image.open(io.BytesIO(tab.locator("figure .wide").first.screenshot()))
            red, green, blue = figure.convert("RGB").getpixel((figure.width - 2, figure.height - 4))
            browser.close()
        return {**found, "said": said, "side": f"rgb({red}, {green}, {blue})"}

    return measure


def test_every_column_of_the_table_of_cells_is_explained(web: str) -> None:
    section = web[web.index("<h2>Every cell") :]
    said = section[: section.index("<table")]
    columns = re.findall(r"<th[^>]*>([^<]+)</th>", section[: section.index("<tbody")])
    assert len(columns) == 11
    assert [name for name in columns[2:] if not re.search(rf"[ >]{name}: ", said)] == []


def test_a_score_that_no_trial_has_is_named(results: Results) -> None:
    study = replace(results.study, metric="multibleu")
    with pytest.raises(UserError, match=r"no trial has a score 'multibleu'; those .* multi_bleu$"):
        Results(study, results.records)
    unscored = [{**record, "scores": {}} for record in results.records]
    assert Results(study, unscored).cells == {}


def test_where_nothing_was_run_the_command_that_runs_it_is_told(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("optuna")
    file, out = str(write_study()), str(tmp_path / "the output")
    place = ["--data", f"tiny={tmp_path}", "--output", out, "--storage", f"sqlite:///{out}/s.db"]
    assert main(["study", "report", file, *place]) == 2
    told = re.search(r"start some with `(.*)`$", capsys.readouterr().err)
    assert told and shlex.split(told[1]) == ["multibranch", "study", "run", file, *place]


def test_what_marks_were_tested_by_is_said_where_it_is_another_score(results: Results) -> None:
    assert "(paired bootstrap over the test sentences, p < 0.05)" in markdown(results)
    study = replace(results.study, metric="sentence_bleu")
    records = [
        {**record, "scores": {"sentence_bleu": record["scores"]["multi_bleu"]}}
        for record in results.records
    ]
    text = markdown(Results(study, records, results.comparisons))
    assert "(paired bootstrap of BLEU on tokens, not of this score, over the test" in text


def test_the_command_of_some_seeds_can_be_pasted_whatever_the_corpus_is_called() -> None:
    study = replace(load_study("builtin"), seeds=3)
    made = []
    for seed in (1, 2):
        experiment = Experiment(corpus="köln", seed=seed)
        command = shlex.join(["multibranch", "study", "run", "a b.yaml", "--only", experiment.key])
        made.append({**made_record(study, experiment, 30.0), "command": command})
    [cell] = Results(study, made).cells.values()
    words = shlex.split(command_of(cell, study))
    assert words[3:] == ["a b.yaml", "--only", *(record["key"] for record in made)]


@pytest.mark.parametrize(
    ("seeds", "usual", "asked"),
    [
        ([1, 2, 3], 3, []),
        ([1, 2], 3, [1, 2]),
        ([1, 2, 4], 3, [1, 2, 4]),
        ([1, 2, 3, 4, 5], 3, []),
        ([1, 2, 3], 5, [1, 2, 3]),
    ],
)
def test_the_command_of_a_row_repeats_the_seeds_that_were_run_and_no_others(
    seeds: list[int], usual: int, asked: list[int], tmp_path: Path
) -> None:
    """Whichever the study has, and whichever command each of them was run by."""
    study = load_study("ted-de-en")
    study.seeds = usual
    first = next(e for e in study.experiments() if e.drop_branch == 0.3)
    made = []
    for seed in seeds:
        one = replace(first, seed=seed)
        command = Bench(study=study, output=tmp_path).command(one)
        made.append({**made_record(study, one, 30.0), "command": command})
    [cell] = Results(study, made).cells.values()
    words = shlex.split(command_of(cell, study))
    keys = words[words.index("--only") + 1 :]
    count = int(keys.pop()) if "--seeds" in keys else None
    keys = [key for key in keys if key != "--seeds"]
    assert keys == ([f"{first.cell}.s{seed}" for seed in asked] or [first.cell])
    repeated = choose(study.experiments(count), keys)
    assert [e.seed for e in repeated if e.cell == first.cell] == seeds


def test_a_seed_that_a_grid_has_no_more_is_asked_for_in_its_command(tmp_path: Path) -> None:
    study = load_study("ted-de-en")  # one of whose grids has a single seed, where the others have 3
    [one] = [e for e in study.experiments() if e.drop_branch == 0.1]
    bench = Bench(study=study, output=tmp_path)
    assert "--seeds" not in bench.command(one)
    assert bench.command(replace(one, seed=2)).endswith(".s2 --seeds 2")


def test_comparisons_whose_writing_was_cut_off_are_made_again(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    bench = Bench(study=load_study("multi30k-small"), output=tmp_path)
    (tmp_path / "significance-multi30k-small.json").write_text('{"of": {"de-en.scr')
    found = from_storage(bench, f"sqlite:///{tmp_path}/study.db", lambda line: None)
    assert found.comparisons == {}


@pytest.mark.parametrize(
    "content",
    [
        {"of": [], "found": []},
        {"found": {"KEY": {}}},
        {"of": {}, "found": {"KEY": 5}},
        {"of": {}, "found": {"KEY": {"difference": 1}}},
        {"of": {}, "found": {"KEY": {"difference": "x", "p_value": 0, "significant": True}}},
    ],
)
def test_comparisons_edited_by_hand_are_made_again(tmp_path: Path, content: dict) -> None:
    pytest.importorskip("optuna")
    bench = Bench(study=load_study("multi30k-small"), output=tmp_path)
    path = tmp_path / "significance-multi30k-small.json"
    path.write_text(json.dumps(content))
    found = from_storage(bench, f"sqlite:///{tmp_path}/study.db", lambda line: None)
    assert found.comparisons == {}


def test_a_comparison_with_another_signature_is_made_again(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    study = load_study(str(write_study()))
    bench, url = Bench(study=study, output=tmp_path), f"sqlite:///{tmp_path}/study.db"
    data = PreparedData.open(tiny_data)
    perfect = [data.text.tokenise(line, "target") for line in data.lines("test", "target")]
    queue = Queue(open_storage(url), study.name, [])
    continued = next(e for e in study.experiments() if e.start == "continued")
    for experiment in (continued.baseline, continued):
        lines = ["worse" if experiment.start == "scratch" else perfect[0], *perfect[1:]]
        record = made_record(study, experiment, multi_bleu(lines, perfect).value)
        queue.add_done(record, experiment.group)
        folder = tmp_path / "trials" / f"{experiment.key}-{record['fingerprint']}"
        write_lines(folder / HYPOTHESES, lines)
    cache = tmp_path / f"significance-{study.name}.json"
    found = from_storage(bench, url, lambda line: None).comparisons
    [signature] = {each["signature"] for each in found.values()}
    assert signature.startswith("nrefs:1|bs:1000|seed:12345|case:mixed|")
    kept = json.loads(cache.read_text(encoding="utf-8"))
    assert kept["found"] == found

    def changed(signature: str) -> dict[str, Any]:
        other = {"difference": -50.0, "signature": signature}
        return {name: {**each, **other} for name, each in found.items()}

    for said, again in ((signature, False), ("nrefs:1|of an old release", True)):
        kept["found"] = changed(said)
        cache.write_text(json.dumps(kept), encoding="utf-8")
        told: list[str] = []
        comparisons = from_storage(bench, url, told.append).comparisons
        assert comparisons == (found if again else kept["found"])
        assert bool([line for line in told if "significance" in line]) is again

    # Where the translations are gone, what was found stays, with the signature that it has.
    shutil.rmtree(tmp_path / "trials")
    kept["found"] = changed("nrefs:1|of an old release")
    cache.write_text(json.dumps(kept), encoding="utf-8")
    assert from_storage(bench, url, lambda line: None).comparisons == kept["found"]


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-12], lambda data: b"no gzip", lambda data: gzip.compress(b"\xff" * 99)],
    ids=["cut", "other", "no text"],
)
def test_translations_that_are_damaged_are_named(
    write_study: Callable[..., Path], tmp_path: Path, capsys, change: Callable[[bytes], bytes]
) -> None:
    pytest.importorskip("optuna")
    file = write_study()
    study = load_study(str(file))
    queue = Queue(open_storage(f"sqlite:///{tmp_path}/study.db"), study.name, [])
    continued = next(e for e in study.experiments() if e.start == "continued")
    for experiment in (continued.baseline, continued):
        record = made_record(study, experiment, 30.0)
        queue.add_done(record, experiment.group)
        path = tmp_path / "trials" / f"{experiment.key}-{record['fingerprint']}" / HYPOTHESES
        write_lines(path, ["a b c d e"] * 20)
    path.write_bytes(change(path.read_bytes()))
    words = ["study", "report", str(file), "--output", str(tmp_path)]
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"multibranch study: {path} is damaged: ") and "; remove it" in said
    path.unlink()
    assert main(words) == 0


def test_trials_of_a_corpus_that_went_are_reported_with_the_comparisons_they_had(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path, capsys
) -> None:
    pytest.importorskip("optuna")
    file = write_study()
    study, url = load_study(str(file)), f"sqlite:///{tmp_path}/study.db"
    queue = Queue(open_storage(url), study.name, [])
    continued = next(e for e in study.experiments() if e.start == "continued")
    for experiment in (continued.baseline, continued):
        record = made_record(study, experiment, 0.0)
        queue.add_done(record, experiment.group)
        folder = tmp_path / "trials" / f"{experiment.key}-{record['fingerprint']}"
        write_lines(folder / HYPOTHESES, ["a b c d e"] * 20)
    words = ["study", "report", str(file), "--output", str(tmp_path), "--json"]
    assert main(words) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole[1]["against_baseline"]["tested"] == 1
    other = f"name: other, folder: {tiny_data}"
    file.write_text(
        file.read_text(encoding="utf-8").replace(f"name: tiny, folder: {tiny_data}", other)
    )
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == whole
    (tmp_path / f"significance-{study.name}.json").unlink()
    assert main(words) == 0
    found = capsys.readouterr()
    told = f"no test for significance on tiny: {file} has no such corpus any more\n"
    assert found.err.endswith(told)
    assert json.loads(found.out)[1]["against_baseline"]["tested"] == 0


@pytest.mark.parametrize(
    "change", [lambda now: now[1:], lambda now: ["another", *now[1:]]], ids=["fewer", "other"]
)
def test_trials_that_another_test_set_scored_are_not_tested_by_the_one_there_is_now(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path, change: Callable
) -> None:
    """As where a corpus was prepared anew: their scores are of the sentences of before."""
    pytest.importorskip("optuna")
    study = load_study(str(write_study()))
    bench, url = Bench(study=study, output=tmp_path), f"sqlite:///{tmp_path}/study.db"
    data = PreparedData.open(tiny_data)
    now = [data.text.tokenise(line, "target") for line in data.lines("test", "target")]
    before = change(now)
    queue = Queue(open_storage(url), study.name, [])
    continued = next(e for e in study.experiments() if e.start == "continued")
    for experiment in (continued.baseline, continued):
        record = made_record(study, experiment, multi_bleu(before, before).value)
        queue.add_done(record, experiment.group)
        folder = tmp_path / "trials" / f"{experiment.key}-{record['fingerprint']}"
        write_lines(folder / HYPOTHESES, before)
    told: list[str] = []
    found = from_storage(bench, url, told.append)
    assert (len(found.cells), found.comparisons) == (2, {})
    assert told[-1] == (
        "not tested: differences of 2 trials scored by another test set than the corpus has now"
    )


def test_where_no_trial_has_translations_nothing_is_said_to_be_tested(
    tmp_path: Path, results: Results
) -> None:
    pytest.importorskip("optuna")
    bench, url = Bench(study=results.study, output=tmp_path), f"sqlite:///{tmp_path}/study.db"
    queue = Queue(open_storage(url), results.study.name, [])
    for record in results.records:
        if record["experiment"]["seed"] == 1:
            record = {**record, "task": "understanding"}
            queue.add_done(record, Experiment(**record["experiment"]).group)
    told: list[str] = []
    found = from_storage(bench, url, told.append)
    assert len(found.records) > 2 and found.comparisons == {}
    assert not [line for line in told if "significance" in line]
    assert "▲" not in markdown(found) and "paired bootstrap" not in markdown(found)


def test_the_page_in_a_browser_on_narrow_and_wide_light_and_dark_screens(
    web: str, tmp_path: Path, open_page: Callable
) -> None:
    path = tmp_path / "page.html"
    path.write_text(web, encoding="utf-8")
    light = open_page(path, scheme="light", width=1280)
    dark = open_page(path, scheme="dark", width=420)
    for found, width in ((light, 1280), (dark, 420)):
        assert found["wide"] <= width  # tables scroll in themselves
        assert found["said"] == [path.as_uri()]
        assert found["tables"] == 6
        assert found["drawn"]
        assert found["letters"] > 8  # pixels: narrow figures scroll too
        assert found["commands"] <= width  # and commands wrap
    assert light["paper"] == light["side"] == "rgb(255, 255, 255)"
    assert dark["paper"] != light["paper"]
    assert dark["side"] != dark["paper"]  # a shade tells that there is more at the side
    assert dark["text"] != light["text"]
