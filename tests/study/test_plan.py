"""Study files: every one loads, mirrors its tables completely, and names its mistakes."""

import datetime
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from multibranch.cli import main
from multibranch.errors import UserError
from multibranch.study import cells
from multibranch.study.bench import Bench, parse_data
from multibranch.study.experiment import Experiment
from multibranch.study.plan import choose, load_study, study_files
from multibranch.study.results import references

NAMES = list(study_files())


@pytest.mark.parametrize("name", NAMES)
def test_every_study_loads_and_every_experiment_has_a_configuration(name: str) -> None:
    study = load_study(name)
    bench = Bench(study=study, output=Path("runs/study"))
    experiments = study.experiments(seeds=1)
    keys = [experiment.key for experiment in experiments]
    assert len(set(keys)) == len(keys)
    for place, experiment in enumerate(experiments):
        if experiment.parent is not None:
            assert experiment.parent.key in keys[:place]
        if bench.task(experiment) == "understanding":
            assert bench.classifier(experiment).model.branches == experiment.branches
            continue
        config = bench.config(experiment).check()
        assert config.model.branches == experiment.branches
        assert config.model.drop_branch == experiment.drop_branch
        assert config.train.seed == 1
        if experiment.parent is not None:
            assert config.train.init_from == str(bench.folder(experiment.parent))


def test_the_studies_together_run_every_table_of_the_paper() -> None:
    mirrored = {number for name in NAMES for number in load_study(name).papers}
    assert mirrored == set(range(1, 28))


@pytest.mark.parametrize("number", range(1, 28))
def test_a_table_by_its_number_has_an_experiment_for_every_cell_at_the_papers_size(
    number: int,
) -> None:
    study = load_study(f"table-{number}")
    experiments = study.experiments(seeds=1)
    for cell in cells(number):
        if cell.cited:
            continue
        wanted = (cell.branches, cell.width, cell.hidden, cell.ffn_branches, cell.heads)
        rate = 0.3 if cell.drop_branch is None else cell.drop_branch
        assert any(
            (e.branches, e.width, e.hidden, e.ffn_branches, e.heads) == wanted
            and e.drop_branch == rate
            and e.corpus == cell.task
            and (e.drop_kind == cell.drop_kind or not rate)
            and cell.proximal in (None, e.start in ("proximal", "pretrained"))
            for e in experiments
        ), cell


def test_one_baseline_serves_all_cells_of_an_architecture_and_each_has_its_control() -> None:
    experiments = load_study("table-2").experiments(seeds=3)
    first = [e for e in experiments if e.start == "scratch"]
    assert sorted((e.hidden, e.seed) for e in first) == [
        (hidden, seed) for hidden in (1024, 2048) for seed in (1, 2, 3)
    ]
    controls = [e for e in experiments if e.start == "continued"]
    assert len(controls) == len(first)
    assert len(experiments) == 20 * 3 + 6 + 6


def test_studies_of_one_recipe_share_folders_and_a_change_of_the_recipe_parts_them() -> None:
    small, heads = (
        Bench(study=load_study(name), output=Path("out"))
        for name in ("multi30k-small", "multi30k-drop-head")
    )
    shared = {e.key: e for e in small.study.experiments(1)}.keys() & {
        e.key for e in heads.study.experiments(1)
    }
    assert len(shared) >= 8
    one = next(e for e in small.study.experiments(1) if e.key in shared and e.parent)
    assert small.folder(one) == heads.folder(one)
    heads.study.settings = {**heads.study.settings, "train.tokens": 777}
    other = Bench(study=heads.study, output=Path("out"))
    assert other.folder(one) != small.folder(one)
    assert other.config(one).train.tokens == 777


def test_a_second_stage_may_have_settings_of_its_own_and_so_has_the_control() -> None:
    study = load_study("multi30k-small")
    before = Bench(study=study, output=Path("out"))
    folders = {e.key: before.folder(e) for e in study.experiments(1)}
    study.second_settings = {"train.warmup": 99}
    bench = Bench(study=study, output=Path("out"))
    for experiment in study.experiments(1):
        second = experiment.start in ("continued", "proximal")
        assert bench.config(experiment).train.warmup == (
            99 if second else study.settings["train.warmup"]
        )
        assert (bench.folder(experiment) != folders[experiment.key]) == second


def test_a_mat_from_scratch_may_have_settings_of_its_own() -> None:
    study = load_study("multi30k-small")
    before = Bench(study=study, output=Path("out"))
    folders = {e.key: before.folder(e) for e in study.experiments(1)}
    study.scratch_settings, study.scratch_updates = {"train.warmup": 99}, 123
    bench = Bench(study=study, output=Path("out"))
    changed = [e for e in study.experiments(1) if bench.folder(e) != folders[e.key]]
    assert changed == [e for e in study.experiments(1) if e.start == "scratch" and e.branches > 1]
    for experiment in study.experiments(1):
        train = bench.config(experiment).train
        assert ((train.warmup, train.max_updates) == (99, 123)) == (experiment in changed)


def test_without_dropping_there_is_no_kind_of_dropping() -> None:
    both = [load_study(name).experiments(1) for name in ("table-2", "table-12")]
    plain = [{e.key for e in each if e.start == "proximal" and not e.drop_branch} for each in both]
    assert plain[0] == plain[1] and len(plain[0]) == 5


def test_experiments_are_compared_with_the_baseline_and_its_continuation() -> None:
    mat = Experiment(corpus="c", seed=2, start="proximal", branches=3, drop_branch=0.3)
    found = references(mat)
    assert found["baseline"] == replace(mat, start="scratch", branches=1, drop_branch=0.0)
    assert found["continued"].start == "continued"
    assert list(references(found["baseline"])) == ["continued"]
    pruned = replace(mat, start="pruned", keep=1)
    assert pruned.parent == mat == references(pruned)["unpruned"]
    assert pruned.baseline == mat.baseline


def test_only_takes_keys_and_parts_and_brings_what_they_start_from() -> None:
    experiments = load_study("multi30k-small").experiments()
    key = "de-en.proximal.3-256-1024.m4.l4+4.r0.3.s1"
    baseline = "de-en.scratch.1-256-1024.m4.l4+4.r0.s1"
    assert [e.key for e in choose(experiments, [key])] == [baseline, key]
    assert len(choose(experiments, [key.removesuffix(".s1")])) == 6
    assert {e.seed for e in choose(experiments, ["s2"])} == {2}
    assert len(choose(experiments, ["de-en.scratch.1-*.s1"])) == 16
    # The point of a rate is none between two parts: ρ = 0 is not ρ = 0.3.
    cell = "de-en.scratch.3-256-1024.m4.l4+4.r0"
    assert {e.cell for e in choose(experiments, [cell])} == {cell}
    assert {e.drop_branch for e in choose(experiments, ["r0"])} == {0.0}
    assert {e.drop_branch for e in choose(experiments, ["scratch", "r0.3"])} >= {0.0, 0.3}
    # A whole key names one cell, though the key of the same with R-Drop begins with it.
    plain = Experiment(corpus="c", seed=1, branches=2)
    both = [plain, replace(plain, r_drop=5.0)]
    assert choose(both, [plain.cell]) == choose(both, [plain.key]) == [plain]
    assert choose(both, [plain.cell.removeprefix("c.")]) == both
    with pytest.raises(UserError, match=r"no experiment of the study fits; the nearest is de-en\."):
        choose(experiments, ["de-en.proximal.3-256-1024.m4.l4+4.r0.9.s1"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tittle: x", "there is no key tittle; did you mean title?"),
        ("grids: [{branch: [1]}]", r"there is no key grids\[1\].branch; did you mean .*branches"),
        ("grids: [{paper: 28}]", r"grids\[1\].paper: the paper has tables 1 to 27"),
        ("grids: [{starts: [proximate]}]", "'proximate' is none of scratch"),
        ("grids: [{shapes: [256x1024]}]", "write d/d_h, as in 256/1024"),
        ("grids: [{paper: 4}]", "no cell of its tables is for one of its corpora"),
        ("grids: []", "at least one corpus and one grid"),
        ("seeds: many", "seeds must be a whole number, not 'many'"),
        ("seeds: 0", "seeds must be 1 to 1,000, not 0"),
        ("seeds: 1000000000000", "seeds must be 1 to 1,000, not 1000000000000"),
        ("scratch_settings: [1]", "scratch_settings must be a section of keys, not "),
        ("grids: [{seeds: -1}]", r"grids\[1\].seeds must be 1 to 1,000, not -1"),
        ("grids: [{seeds: 1001}]", r"grids\[1\].seeds must be 1 to 1,000, not 1001"),
        ("grids: [{branches: [2], keep: [0]}]", r"grids\[1\].keep must be at least 1, not 0"),
        ("grids: [{branches: [1]}, {branches: []}]", r"grids\[2\].branches is empty"),
        ("grids: [{paper: 2, width_factor: .nan}]", r"grids\[1\].width_factor must be above 0"),
        ("grids: [{paper: 2, hidden_factor: .inf}]", r"hidden_factor must be .* not inf"),
        ("grids: [{paper: 2, branches: [2]}]", r"branches is for a grid that lists values, and"),
        ("grids: [{paper: 2, keep: [1]}]", r"keep is for a grid that lists values, and this one"),
        ("grids: [{branches: [2], width_factor: 0.5}]", "width_factor makes a table of the paper"),
        ("search: {drop_branch: [0.1, 0.2, 0.3]}", "search.drop_branch: give from and to, not 3"),
        (
            "grids: [{branches: [1]}, {paper: 4}]",
            r"grids\[2\].paper: no cell of table 4 is for one",
        ),
    ],
)
def test_a_mistake_in_a_study_file_is_named(tmp_path: Path, change: str, message: str) -> None:
    content = {
        "title": "title: T",
        "config": "config: configs/builtin.yaml",
        "corpora": "corpora: [{name: a}]",
        "grids": "grids: [{branches: [1]}]",
    }
    content[change.split(":")[0]] = change
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(content.values()), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_study(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("drop_branch: [0.1, 0.3]", "drop_branch must be at least 0 and below 1, not 1.5"),
        ("branches: [2]", "branches must be at least 1, not 0"),
        ("shapes: [16/16]", "4 heads do not divide a width of 18"),
        ("updates: 6", "max_updates must be at least 1, not 0"),
        ("second_updates: 20", "max_updates must be at least 1, not 0"),
        ("length_penalties: [1.0]", "length_penalties must be at least -10 and at most 10, not 11"),
        ("title: Tiny", "metric: translation has no score 'blue'; those there are: bleu, multi_b"),
        ("starts: [proximal]", "the start pretrained, and no other, is for an encoder's tasks"),
    ],
)
def test_a_value_that_no_model_can_have_is_refused_before_anything_is_trained(
    write_study: Callable[..., Path], tmp_path: Path, capsys, change: str, message: str
) -> None:
    pytest.importorskip("optuna")
    bad = {"drop_branch": "[0.1, 1.5]", "branches": "[0]", "shapes": "[18/16]", "updates": "0"}
    bad["second_updates"] = "0"
    bad |= {"title": "Tiny\nmetric: blue", "length_penalties": "[10, 11]"}
    name = change.partition(":")[0]
    file = write_study()
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(change, f"{name}: {bad.get(name, '[pretrained]')}"))
    assert main(["study", "run", str(file), "--output", str(tmp_path / "out")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"multibranch study: {file}: ") and message in line
    assert "metric" in line or "penalties" in line or ": tiny." in line
    assert not list(tmp_path.glob("out/trials/*"))


def test_no_layers_in_a_grid_are_not_those_of_the_papers_table() -> None:
    study = load_study("table-2")
    study.grids[0].encoder_layers = 0
    one = study.experiments(seeds=1)[0]
    assert (one.encoder_layers, one.decoder_layers) == (0, 6)
    with pytest.raises(UserError, match="encoder_layers must be at least 1, not 0"):
        Bench(study=study, output=Path("out")).check([one])


def test_a_setting_that_is_none_and_a_study_that_is_none() -> None:
    study = load_study("builtin")
    study.settings = {"train.warmupp": 3}
    with pytest.raises(
        UserError, match=r"settings: .*--train.warmupp; did you mean --train.warmup"
    ):
        Bench(study=study, output=Path("out")).config(study.experiments(1)[0])
    study.settings = {"train.warmup": datetime.date(2020, 1, 1)}  # as YAML reads 2020-01-01
    with pytest.raises(UserError, match=r"settings: train\.warmup must be a whole number"):
        Bench(study=study, output=Path("out")).config(study.experiments(1)[0])
    with pytest.raises(UserError, match=r"no study .*; a study's file ends in \.yaml"):
        load_study(str(Path(__file__)))
    with pytest.raises(UserError, match=r"did you mean multi30k-small\?"):
        load_study("multi30k-smal")


@pytest.mark.parametrize("key", ["model.drop_ffn", "model.width", "train.r_drop", "train.seed"])
def test_settings_that_experiments_decide_are_refused(
    write_study: Callable[..., Path], key: str
) -> None:
    study = load_study(str(write_study()))
    scratch = replace(study.grids[0], paper=None, starts=["scratch"], branches=[2])
    for changed in (
        replace(study, settings={**study.settings, key: 1}),
        replace(study, second_settings={key: 1}),
        replace(study, scratch_settings={key: 1}, grids=[scratch]),
        replace(study, corpora=[replace(study.corpora[0], settings={key: 1})]),
    ):
        bench = Bench(study=changed, output=Path("out"))
        with pytest.raises(UserError, match=f"settings: {key} is decided by each experiment"):
            [bench.config(experiment) for experiment in changed.experiments()]


@pytest.mark.parametrize("place", ["settings", "second_settings", "scratch_settings", "corpora"])
def test_a_wrong_setting_is_told_with_the_key_that_holds_it(
    write_study: Callable[..., Path], place: str
) -> None:
    study = load_study(str(write_study()))
    study.grids.append(replace(study.grids[0], starts=["scratch"], branches=[2]))
    wrong = {"train.warmup": "fast"}
    where = place if place != "corpora" else "corpora: tiny: settings"
    if place == "corpora":
        study.corpora = [replace(study.corpora[0], settings=wrong)]
    else:
        setattr(study, place, wrong)
    bench = Bench(study=study, output=Path("out"))
    told = re.escape(f"{study.path}: {where}: train.warmup must be a whole number, not 'fast'")
    with pytest.raises(UserError, match=f"^{told}$"):
        bench.check(study.experiments())


@pytest.mark.parametrize("place", ["second_settings", "scratch_settings"])
def test_a_wrong_setting_of_a_stage_that_is_not_run_is_refused_too(
    write_study: Callable[..., Path], place: str
) -> None:
    study = load_study(str(write_study()))
    setattr(study, place, {"train.warmupp": 3})
    bench = Bench(study=study, output=Path("out"))
    with pytest.raises(UserError, match=f"{place}: there is no option --train.warmupp; did you"):
        bench.check([study.experiments()[0]])


@pytest.mark.parametrize("key", ["train.max_updates", "train.max_epochs", "train.max_minutes"])
def test_an_end_of_training_among_the_settings_that_the_study_passes_over_is_refused(
    write_study: Callable[..., Path], key: str
) -> None:
    study = load_study(str(write_study()))
    for place in ("settings", "second_settings"):
        changed = replace(study, **{place: {key: 3}})
        with pytest.raises(
            UserError, match=f"{key} is among the settings, but .*: remove one of them"
        ):
            Bench(study=changed, output=Path("out")).check(changed.experiments())
    alone = replace(study, settings={key: 3}, updates=None, second_updates=None)
    Bench(study=alone, output=Path("out")).check(alone.experiments())


def test_data_is_found_by_name_by_folder_and_by_what_holds_them_all(tmp_path: Path) -> None:
    study = load_study("multi30k-small")
    for name in ("multi30k-de-en", "multi30k-en-de"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}", encoding="utf-8")
    both = {n: str(tmp_path / f"multi30k-{n}") for n in ("de-en", "en-de")}
    assert parse_data([str(tmp_path)], study) == both
    assert parse_data([f"{both['en-de']}"], study) == {"en-de": both["en-de"]}
    assert parse_data(["en-de=x"], study) == {"en-de": "x"}
    for before in ([], ["en-de=x"], [both["de-en"]]):
        with pytest.raises(UserError, match=r"none: the study has several corpora"):
            parse_data([*before, str(tmp_path / "none")], study)
    assert parse_data(["x"], load_study("ted-de-en")) == {"de-en": "x"}


def test_what_ends_training_makes_another_trial(write_study: Callable[..., Path]) -> None:
    path = write_study()

    def fingerprint(patience: str, judge_from: str = "null") -> str:
        content = path.read_text(encoding="utf-8")
        file = path.with_name(f"patience-{patience}-{judge_from}.yaml")
        said = f"train.patience: {patience}\n  train.judge_from: {judge_from}"
        file.write_text(content.replace("train.patience: null", said))
        study = load_study(str(file))
        return Bench(study=study, output=Path("out")).fingerprint(study.experiments()[0])

    assert fingerprint("3") != fingerprint("9")
    assert fingerprint("3") != fingerprint("3", "20")
    assert fingerprint("3") == fingerprint("3")


@pytest.mark.parametrize("change", [{"length_penalties": [0.6]}, {"same_length_penalty": True}])
def test_other_length_penalties_make_another_trial(
    write_study: Callable[..., Path], change: dict[str, Any]
) -> None:
    study = load_study(str(write_study()))
    other = replace(study, **change)
    benches = [Bench(study=each, output=Path("out")) for each in (study, other)]
    for experiment in study.experiments():
        assert benches[0].folder(experiment) != benches[1].folder(experiment)


def test_a_trial_is_outdated_by_other_settings_but_not_by_a_corpus_that_went(
    write_study: Callable[..., Path],
) -> None:
    study = load_study(str(write_study()))
    bench, experiment = Bench(study=study, output=Path("out")), study.experiments()[0]
    record = {"experiment": asdict(experiment), "fingerprint": bench.fingerprint(experiment)}
    assert not bench.is_outdated(record)
    assert bench.is_outdated({**record, "fingerprint": "other"})
    gone = asdict(replace(experiment, corpus="gone"))
    assert not bench.is_outdated({"experiment": gone, "fingerprint": "other"})
