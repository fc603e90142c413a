"""`evaluate` and `inspect` as they are called: results, comparisons, and what they refuse."""

import json
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch

from multibranch.cli import main
from multibranch.cli.searching import parse_branches
from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.decoding import Translator
from multibranch.directory import save_model
from multibranch.metrics import bleu, multi_bleu
from multibranch.nn import MultiBranchTransformer
from multibranch.tasks import evaluation


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("data") / "corpus"
    return PreparedData.open(builtin("translation", folder, pairs=60, valid=5, test=12, jobs=1))


def model_directory(
    folder: Path, data: PreparedData, seed: int, *, task: str = "translation"
) -> Path:
    torch.manual_seed(seed)
    model = MultiBranchTransformer(
        source_vocabulary=data.text.source_size,
        target_vocabulary=data.text.target_size,
        width=16,
        hidden=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        branches=2,
        share_embeddings="all" if data.text.shared else "target",
    )
    save_model(
        folder,
        model,
        data.text,
        extra={
            "task": task,
            "decoding": {"beam": 2},
            "training": {"data": str(data.folder)},
        },
    )
    return folder


@pytest.fixture(scope="module")
def models(data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    return [model_directory(place / str(seed), data, seed) for seed in (1, 2)]


def called(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, error = capsys.readouterr()
    return status, out, error


def test_every_output_is_scored_once(
    models: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scored, ter = [], evaluation.ter  # the score that takes long

    def counted(lines: list[str], references: list[str]) -> object:
        scored.append(lines)
        return ter(lines, references)

    monkeypatch.setattr(evaluation, "ter", counted)
    status, out, _ = called(capsys, "evaluate", *models, "--json")
    found = json.loads(out)
    assert (status, len(scored)) == (0, 2)
    assert found["seeds"]["ter"]["values"][0] == pytest.approx(found["ter"], abs=0.01)


def test_evaluate_decodes_in_the_precision_that_is_asked_for(
    models: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, load = [], Translator.load

    def noted(*folders: object, **how: object) -> Translator:
        asked.append(how["precision"])
        return load(*folders, **how)

    monkeypatch.setattr(Translator, "load", noted)
    words = ("--device", "cpu", "--limit", 5, "--json")
    for precision in ("int8", "float32"):
        status, out, _ = called(capsys, "evaluate", models[0], "--precision", precision, *words)
        found = json.loads(out)
        assert (status, found["sentences"], found["precision"]) == (0, 5, precision)
    assert asked == ["int8", "float32"]


def test_int8_without_its_kernels_says_so_once(
    models: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multibranch.nn.int8_kernels.lacking", lambda: "int8 is slower: a reason")
    words = ("evaluate", *models, "--device", "cpu", "--limit", 2, "--precision")
    _, _, error = called(capsys, *words, "int8")
    assert error == "multibranch evaluate: int8 is slower: a reason\n"
    assert called(capsys, *words, "float32")[2] == ""


def test_scores_are_those_of_the_outputs_with_their_signatures(
    models: list[Path], data: PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.txt"
    status, out, _ = called(capsys, "evaluate", models[0], "--json", "--output", file)
    result = json.loads(out)
    assert status == 0
    lines = Translator.load(models[0], device="cpu").translate(data.lines("test", "source"))
    assert file.read_text().splitlines() == lines
    references = data.lines("test", "target")
    assert result["bleu"] == round(bleu(lines, references).value, 2)
    words = [data.text.tokenise(line, "target") for line in references]
    outputs = Translator.load(models[0], device="cpu").generate(
        data.lines("test", "source"), tokenised_output=True
    )
    expected = multi_bleu([found[0].text for found in outputs], words)
    assert result["multi_bleu"] == round(expected.value, 2)
    assert set(result["signatures"]) == {"bleu", "multi_bleu", "chrf", "ter"}
    assert result["signatures"]["multi_bleu"] == expected.signature


@pytest.mark.parametrize(
    ("words", "sentences", "said"),
    [
        ([], 12, " on test, 12 sentences, in float32"),
        (["--limit", 12], 12, " on test, 12 sentences, in float32"),
        (["--limit", 99], 12, " on test, 12 sentences, in float32"),
        (["--limit", 5], 5, " on test, the first 5 of 12 sentences, in float32"),
        (["--limit", 1], 1, " on test, the first 1 of 12 sentences, in float32"),
        (["--precision", "bfloat16"], 12, " on test, 12 sentences, in bfloat16"),
        (["--branches", "2"], 12, " on test, 12 sentences, in float32, branches 2 only"),
    ],
)
def test_a_result_says_how_many_sentences_were_scored_and_in_what_precision(
    models: list[Path],
    words: list[object],
    sentences: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(models[0].parent)
    _, out, _ = called(capsys, "evaluate", models[0].name, *words, "--json")
    found = json.loads(out)
    assert (found["sentences"], found["split_size"]) == (sentences, 12)
    assert f" in {found['precision']}" in said
    _, table, _ = called(capsys, "evaluate", models[0].name, *words)
    assert table.splitlines()[0].rstrip() == models[0].name + said


def test_the_json_says_how_was_searched(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(models[1], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["decoding"] = {"beam": 3, "length_penalty": 0.6}
    (other / "config.json").write_text(json.dumps(config))
    words = ("evaluate", models[0], "--compare", other, "--limit", 3, "--json")
    names = ("beam", "length_penalty", "branches")
    for given, first, second in (
        ([], (2, 1.0, None), (3, 0.6, None)),
        (["--length-penalty", 2, "--branches", "2,1"], (2, 2.0, [2, 1]), (3, 2.0, [2, 1])),
        (["--beam", 1], (1, 1.0, None), (1, 0.6, None)),
    ):
        status, out, _ = called(capsys, *words, *given)
        found = json.loads(out)
        assert status == 0
        assert tuple(found[name] for name in names) == first
        assert tuple(found["comparison"][name] for name in names) == second


def test_the_branches_are_read_once(
    models: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[str | None] = []

    def counted(said: str | None) -> list[int] | None:
        read.append(said)
        return parse_branches(said)

    monkeypatch.setattr("multibranch.cli.searching.parse_branches", counted)
    words = (*models, "--compare", models[1], "--branches", "2", "--limit", 2, "--json")
    status, out, _ = called(capsys, "evaluate", *words)
    assert (status, json.loads(out)["branches"], read) == (0, [2], ["2"])


def test_several_seeds_and_a_comparison(
    models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("evaluate", *models, "--compare", models[1], "--json")
    status, out, _ = called(capsys, *words)
    result = json.loads(out)
    assert status == 0
    assert len(result["seeds"]["bleu"]["values"]) == 2
    assert result["comparison"]["with"] == str(models[1])
    status, shown, _ = called(capsys, *words[:-1])
    assert status == 0
    lines = shown.splitlines()
    assert lines[0] == f"{models[0]} on test, 12 sentences, in float32"
    signatures = result["signatures"] | {"comparison": result["comparison"]["signature"]}
    for name, signature in signatures.items():
        assert f"{name}: {signature}" in lines  # whole, to be copied


def test_a_comparison_is_of_the_score_beside_it() -> None:
    words = ["the cat sat on the mat", "it rains"]
    system, baseline = (
        evaluation.Output(name, words, words, words, words, lowercase=True) for name in "ab"
    )
    score = evaluation.compare(system, baseline)["signature"]
    assert "|case:lc|" in score and "|case:lc|" in system.scores()["multi_bleu"].signature


def test_a_folder_is_named_as_it_is(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich would take what stands in brackets for a style, and a [/ for the end of one."""
    model = shutil.copytree(models[0], tmp_path / "a[bold]")
    other = shutil.copytree(models[1], tmp_path / "b[" / "c]")
    assert main(["evaluate", str(model), "--compare", str(other), "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert " multi_bleu against " in shown  # the table has another BLEU, too
    out = "".join(shown.split())  # a long path is broken anywhere
    assert "a[bold]ontest" in out and "b[/c]:" in out


def test_models_of_different_test_sets_are_not_compared(
    models: list[Path], data: PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "corpus"
    shutil.copytree(data.folder, other)
    lines = (other / "test.target.txt").read_text().splitlines()
    (other / "test.target.txt").write_text("".join(line + "\n" for line in reversed(lines)))
    moved = tmp_path / "moved"
    shutil.copytree(models[1], moved)
    config = json.loads((moved / "config.json").read_text())
    config["training"]["data"] = str(other)
    (moved / "config.json").write_text(json.dumps(config))
    for words in (["--compare", moved], [moved]):
        status, _, error = called(capsys, "evaluate", models[0], *words)
        assert status == 2
        assert "would be scored on different references" in error.splitlines()[-1]


def test_a_relative_corpus_is_named_as_it_was_looked_up(
    models: list[Path],
    data: PreparedData,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = shutil.copytree(models[0], tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["training"]["data"] = data.folder.name
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    status, out, error = called(capsys, "evaluate", "model")
    assert (status, out) == (2, "")
    assert error == (
        "multibranch evaluate: model was trained on corpus, and from here there is no folder "
        f"{tmp_path / 'corpus'}: give --data FOLDER\n"
    )
    monkeypatch.chdir(data.folder.parent)
    assert called(capsys, "evaluate", model, "--limit", 1)[0] == 0


def test_data_prepared_for_another_task_are_refused(
    models: list[Path],
    data: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"pairs": 60, "valid": 5, "test": 12}
    code = PreparedData.open(builtin("code", Path("programs"), **sizes, jobs=1))
    builtin("entailment", Path("labelled"), **sizes, jobs=1)
    shutil.copytree(models[0], "translates")
    for name, task in (("writes", "code"), ("translates-to-code", "translation")):
        model_directory(Path(name), code, seed=1, task=task)
    another = "{} was prepared for the task {}, and {} is for {}: give --data a folder of that task"
    programs, sentences = "code (nl → python)", "translation (va → en)"
    for model, folder, said in (
        ("translates", "programs", another.format("programs", programs, "translates", sentences)),
        ("writes", data.folder, another.format(data.folder, sentences, "writes", programs)),
        ("translates", "labelled", "labelled holds labelled texts, for classifiers: give --data a "
         "folder of pairs for translates"),
    ):  # fmt: skip
        status, out, error = called(capsys, "evaluate", model, "--data", folder)
        assert (status, out, error) == (2, "", f"multibranch evaluate: {said}\n")
    # Such a model writes what the folder holds, whatever its configuration called the task.
    words = ("translates-to-code", "--data", "programs", "--limit", 1, "--json")
    assert called(capsys, "evaluate", *words)[0] == 0


@pytest.mark.parametrize(
    ("held", "refused"),
    [
        (("en", "va"), "en → va"),
        (("de", "en"), "de → en"),
        (("va", "fr"), "va → fr"),
        (("", "fr"), "? → fr"),
        (("va", "en"), None),
        (("va", ""), None),
        (("", ""), None),
    ],
)
def test_data_of_other_languages_are_refused_where_both_sides_say_theirs(
    models: list[Path],
    data: PreparedData,
    tmp_path: Path,
    held: tuple[str, str],
    refused: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = shutil.copytree(data.folder, tmp_path / "other")
    settings = json.loads((other / "text.json").read_text())
    settings["source"], settings["target"] = held
    (other / "text.json").write_text(json.dumps(settings))
    words = (models[0], "--data", other, "--limit", 1)
    status, out, error = called(capsys, "evaluate", *words)
    if refused is None:
        assert status == 0
    else:
        assert (status, out) == (2, "")
        assert error == (
            f"multibranch evaluate: {other} holds pairs {refused}, and {models[0]} is for va → en: "
            "give --data a folder of those languages, in that direction\n"
        )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"one\n", "has 12 sources and 1 target in its split test: prepare it again"),
        (b"\xff\n" * 12, "test.target.txt is damaged: it is no text in UTF-8"),
    ],
)
def test_damaged_text_is_refused_before_decoding(
    models: list[Path],
    data: PreparedData,
    tmp_path: Path,
    content: bytes,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = shutil.copytree(data.folder, tmp_path / "other")
    (other / "test.target.txt").write_bytes(content)
    monkeypatch.setattr(evaluation, "decode_split", lambda *_, **__: pytest.fail("it decodes"))
    status, out, error = called(capsys, "evaluate", models[0], "--data", other)
    assert (status, out) == (2, "")
    assert said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("option", [["--compare"], []])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nothing", "nothing is no model directory: there is no such folder"),
        ("code", "code is a model of the task code, which is not scored beside translation models"),
        ("bare", "bare is incomplete: it has no file model.safetensors"),
        ("moved", "give --data FOLDER"),
        ("single", "single have branches 1 to 1; name each at most once"),
    ],
)
def test_every_model_is_looked_at_before_the_first_is_decoded(
    models: list[Path],
    tmp_path: Path,
    option: list[str],
    wrong: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("code", "bare", "moved", "single"):
        shutil.copytree(models[1], tmp_path / name)
    (tmp_path / "bare" / "model.safetensors").unlink()
    for name, change in (
        ("code", {"task": "code"}),
        ("moved", {"training": {"data": "/no/c"}}),
        ("single", {"branches": [2, 1]}),
    ):
        config = json.loads((tmp_path / name / "config.json").read_text()) | change
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    decoded: list[object] = []
    monkeypatch.setattr(evaluation, "decode_split", lambda folder, *_, **__: decoded.append(folder))
    words = ("evaluate", "--branches", "2", models[0], *option, tmp_path / wrong)
    status, out, error = called(capsys, *words)
    assert (status, out, decoded) == (2, "", [])
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "nowhere/x.txt"], "there is no folder nowhere"),
        (["--output", "/"], "is a folder"),
        (["--output", ""], ": . is a folder: give --output a file"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--branches", "3"], "have branches 1 to 2"),
        (["--branches", "a"], "--branches takes numbers"),
        (["--valid-only"], "--valid-only is for models that write code"),
        (["--compare", ""], ". is no model directory"),
        (["--split", "valid_mismatched"], "has no split 'valid_mismatched'"),
    ],
)
def test_what_cannot_be_is_one_line(
    models: list[Path], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, error = called(capsys, "evaluate", models[0], *words)
    assert status == 2
    assert said in error.splitlines()[-1]
    assert out == ""


def test_an_output_that_may_not_be_written_is_refused_before_decoding(
    models: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(evaluation, "decode_split", None)  # what is called now would be an error
    file = tmp_path / "out.txt"
    file.touch()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != file)
    for place, said in (
        (file, f"{file} may not be written: choose another --output"),
        (file / "x", f"{file}/x cannot be written: {file} is a file; choose another --output"),
        (tmp_path, f"{tmp_path} is a folder: give --output a file"),
        (tmp_path / "a/b", f"there is no folder {tmp_path}/a to write b to; make it"),
    ):
        status, out, error = called(capsys, "evaluate", models[0], "--output", place)
        assert (status, out, error) == (2, "", f"multibranch evaluate: {said}\n")


def test_an_output_that_cannot_be_finished_leaves_the_file_that_was_there(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.txt"
    file.write_text("before\n")
    file.chmod(0o640)
    words = ("evaluate", models[0], "--limit", 2, "--output", file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))  # as of a disk that gets full
    try:
        status, _, error = called(capsys, *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, error) == (2, f"multibranch evaluate: {file}: File too large\n")
    assert file.read_text() == "before\n"
    assert list(tmp_path.iterdir()) == [file]
    assert called(capsys, *words)[0] == 0
    assert len(file.read_text().splitlines()) == 2
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "words",
    [
        "demo --output /proc/x",
        "prepare parallel --source lines.de --target lines.en --output /proc/x",
        "prepare multi30k-de-en --output /proc/x",
        "train config.yaml --train.output /proc/x",
        "train config.yaml --two-stage --train.output /proc/x",
        "train config.yaml --data.folder null --train.output /proc/x",
        "branch MODEL --branches 4 --tile --output /proc/x",
        "translate MODEL --input lines.de --output /proc/x",
        "evaluate MODEL --output /proc/x",
        "inspect MODEL ein --output /proc/x",
        "export MODEL --format onnx --output /proc/x",
        "study run builtin --output /proc/x",
        "study search builtin --output /proc/x",
        "study import builtin FOLDER --output /proc/x",
        "study report builtin --output /proc/x",
        "study report builtin --html /proc/x",
    ],
)
def test_a_place_that_takes_nothing_is_named_in_one_line(
    words: str,
    models: list[Path],
    data: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lines.de", "lines.en"):
        Path(name).write_text("ein Satz\n" * 9)
    Path("config.yaml").write_text(
        f"data: {{folder: {data.folder}}}\nmodel: {{branches: 2}}\ntrain: {{max_updates: 1}}\n"
    )
    status, out, error = called(capsys, *words.replace("MODEL", str(models[0])).split())
    assert (status, out) == (2, "")
    line = error.splitlines()[-1]
    assert re.search(r" /proc/x:? ", line), line
    assert "No such file or directory" in line
    assert "/." not in line
    assert len(error.splitlines()) == (2 if "parallel" in words else 1)  # it tells what it is at


def test_inspect_makes_the_folder_of_its_pictures(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "more" / "pictures"
    status, _, error = called(capsys, "inspect", models[0], "ein", "--output", folder / "dog")
    assert status == 0, error
    assert sorted(path.name for path in folder.iterdir()) == ["dog.html", "dog.png"]
    for written in ("cat.png", "cow.html"):  # as one who names the picture writes it
        called(capsys, "inspect", models[0], "ein", "--output", folder / written)
    names = [f"{name}.{kind}" for name in ("cat", "cow", "dog") for kind in ("html", "png")]
    assert sorted(path.name for path in folder.iterdir()) == names
    (tmp_path / "file").touch()
    words = ("inspect", models[0], "ein", "--output", tmp_path / "file" / "dog")
    status, out, error = called(capsys, *words)
    assert (status, out) == (2, "")
    place = tmp_path / "file"
    said = f"{place}/dog cannot be written: {place} is a file; choose another --output"
    assert error == f"multibranch inspect: {said}\n"


def test_inspect_says_in_one_line_that_its_picture_lacks_characters(
    models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("inspect", models[0], "日本 ein", "--output", tmp_path / "p")
    status, _, error = called(capsys, *words)
    assert status == 0
    assert error == "The picture's font lacks some characters; the page shows all.\n"
    assert "日" in (tmp_path / "p.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("device", "status"), [("auto", 0), ("nonsense", 2)])
def test_inspect_takes_the_devices_that_the_others_take(
    models: list[Path],
    tmp_path: Path,
    device: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("inspect", models[0], "ein", "--output", tmp_path / "p", "--device", device)
    found, _, error = called(capsys, *words)
    assert found == status, error


def test_progress_is_lines_now_and_then_where_there_is_no_terminal(models, monkeypatch, capsys):
    words = ["evaluate", models[0], "--compare", models[1]]
    assert called(capsys, *words)[2] == ""
    monkeypatch.setattr("multibranch.cli.progress._EVERY", 0.0)
    status, _, error = called(capsys, *words)
    assert status == 0
    told = error.splitlines()
    assert f"decoding {models[0]}: 12 of 12" in told
    assert told[-1] == f"decoding {models[1]}: 12 of 12"
