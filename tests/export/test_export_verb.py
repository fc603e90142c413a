"""`multibranch export`, and `translate` and `interactive` with --engine ctranslate2."""

import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from multibranch import disk
from multibranch.cli import main
from multibranch.decoding import Translator
from multibranch.export import OnnxModel

LINES = ["der Hund , und die Frau .", "", "kalt ?"]


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Run the command in this process; gives back status, standard output and error."""

    def run(*words: object, given: str = "") -> tuple[int, str, str]:
        stream = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", stream)
        try:
            status = main([str(word) for word in words])
        except SystemExit as stopped:  # argparse's way
            status = int(stopped.code or 0)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture(scope="module")
def exported(tmp_path_factory, directory) -> Path:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    place = tmp_path_factory.mktemp("exported") / "out"
    assert main(["export", str(directory), "--format", "ctranslate2", "--output", str(place)]) == 0
    return place


def test_the_result_is_a_table_or_json(run, tmp_path, directory):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    words = ["export", directory, "--format", "ctranslate2", "--quantization", "int8", "--output"]
    status, out, _ = run(*words, tmp_path / "a")
    assert status == 0
    assert "Exported" in out
    assert "int8" in out
    status, out, _ = run(*words, tmp_path / "b", "--json")
    assert status == 0
    said = json.loads(out)
    assert said["format"] == "ctranslate2"
    assert said["numbers"] == "int8"
    assert said["output"] == str(tmp_path / "b")
    size = sum(path.stat().st_size for path in (tmp_path / "b").iterdir())
    assert said["megabytes"] == pytest.approx(size / 1e6)
    assert 0 < said["largest_difference"] < 0.5


@pytest.mark.parametrize(
    ("format", "package", "wrote", "engine"),
    [
        ("ctranslate2", "ctranslate2", "the weights in float32", "CTranslate2"),
        ("onnx", "onnxruntime", "encoder.onnx and decoder.onnx", "onnxruntime"),
    ],
)
def test_each_step_is_told_as_it_begins(run, tmp_path, directory, format, package, wrote, engine):
    pytest.importorskip(package, reason=f"{package} is not installed")
    words = ["export", directory, "--format", format, "--json", "--output"]
    status, out, err = run(*words, tmp_path / "told")
    assert status == 0
    assert err.splitlines() == [
        "folding the branches into heads",
        f"writing {wrote}",
        f"checking it: running it with {engine} and with PyTorch",
    ]
    status, quiet, err = run(*words, tmp_path / "quiet", "--quiet")
    assert (status, err) == (0, "")
    assert json.loads(quiet) == {**json.loads(out), "output": str(tmp_path / "quiet")}


def test_translate_with_the_engine_gives_our_output(run, exported, directory):
    given = "".join(f"{line}\n" for line in LINES)
    status, out, _ = run(
        "translate", "--engine", "ctranslate2", exported, "--device", "cpu", given=given
    )
    assert status == 0
    assert out.split("\n")[:-1] == Translator.load(directory, device="cpu").translate(LINES)
    assert run("translate", directory, "--device", "cpu", given=given)[1] == out
    assert run("interactive", "--engine", "ctranslate2", exported, given=given)[1] == out


def test_n_best_lists_of_the_engine_are_ours(run, exported, directory):
    words = ["--n-best", 2, "--json", "--device", "cpu"]
    given = "der Hund\n"
    out = run("translate", "--engine", "ctranslate2", exported, *words, given=given)[1]
    ours = run("translate", directory, *words, given=given)[1]
    found, wanted = json.loads(out)["hypotheses"], json.loads(ours)["hypotheses"]
    assert [one["text"] for one in found] == [other["text"] for other in wanted]
    assert len(found) == 2
    for one, other in zip(found, wanted):
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


def test_the_folder_keeps_the_directorys_search_options(exported):
    said = json.loads((exported / "multibranch.json").read_text())
    assert said["decoding"] == {"beam": 3, "length_penalty": 0.6}


def test_onnx(run, tmp_path, directory):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    words = ["export", directory, "--format", "onnx", "--output", tmp_path / "out", "--json"]
    status, out, _ = run(*words)
    assert status == 0
    assert json.loads(out)["largest_difference"] < 1e-4
    assert set(OnnxModel(tmp_path / "out").sessions) == {"encoder", "decoder"}


def test_ctrl_c_leaves_nothing_not_even_folders_that_were_made(
    run, tmp_path, directory, monkeypatch
):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("multibranch.export.ctranslate2.checked_ctranslate2", interrupted)
    place = tmp_path / "new" / "deep" / "out"
    words = ["export", directory, "--format", "ctranslate2", "--quiet", "--output", place]
    assert run(*words) == (130, "", "multibranch export: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_comes_too_late_once_the_folder_is_in_place(run, tmp_path, directory, monkeypatch):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    place, sync, asked = tmp_path / "out", disk.sync, []

    def interrupted(path: Path) -> None:
        sync(path)
        if path == tmp_path:  # the last of all, after the rename
            asked.append(place.exists())
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(disk, "sync", interrupted)
    words = ["export", directory, "--format", "ctranslate2", "--quiet", "--json", "--output", place]
    status, out, err = run(*words)
    assert (status, err, asked) == (0, "", [True])
    assert json.loads(out)["output"] == str(place)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_help_says_how(run):
    status, out, _ = run("export", "--help")
    assert status == 0
    assert "multibranch translate --engine ctranslate2 exported" in out
    assert "--quantization" in out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["DIR", "--format", "onnx", "--quantization", "int8", "--output", "OUT"], "ONNX graphs"),
        (["DIR", "--format", "onnx", "--positions", "99", "--output", "OUT"], "ONNX graphs"),
        (["DIR", "--format", "ctranslate2", "--positions", "3", "--output", "OUT"], "at least 16"),
        (
            ["DIR", "--format", "ctranslate2", "--positions", "99999999999", "--output", "OUT"],
            "--positions must be .* at most 65,536, not 99,999,999,999",
        ),
        (["DIR", "--format", "ctranslate2", "--output", "DIR"], "exists already"),
        (["nowhere", "--format", "onnx", "--output", "OUT"], "no such folder"),
        (["EMPTY", "--format", "onnx", "--output", "OUT"], "it has no config.json"),
        (["OTHER", "--format", "onnx", "--output", "OUT"], "holds a MarianMTModel"),
        (["NAMELESS", "--format", "onnx", "--output", "OUT"], "holds no model that is known here"),
        (["CLASSIFIER", "--format", "ctranslate2", "--output", "OUT"], "is a classifier.*onnx"),
        (["BROKEN", "--format", "ctranslate2", "--output", "OUT"], "it has no file model.safe"),
        (
            ["DRAWING", "--format", "ctranslate2", "--output", "OUT"],
            r'"decoding" in .*DRAWING/config.json cannot be kept: the engine ctranslate2 does not',
        ),
        (["DIR", "--format", "tflite", "--output", "OUT"], "invalid choice: 'tflite'"),
        (["DIR", "--format", "onnx"], "required: --output"),
        (
            ["DIR", "--format", "ctranslate2", "--quantization", "int4", "--output", "OUT"],
            "no quantization 'int4'; it is one of float32, int8, int8_float32",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_clear_line(run, tmp_path, directory, words, match):
    said = json.loads((directory / "config.json").read_text())
    architectures = {
        "OTHER": {"model_type": "multibranch-marian", "architectures": ["MarianMTModel"]},
        "CLASSIFIER": {"architectures": ["MultiBranchBertForSequenceClassification"]},
        "NAMELESS": {},
        "EMPTY": None,
        "BROKEN": said,
        "DRAWING": {**said, "decoding": {"sample": True}},
    }
    for name, config in architectures.items():
        (tmp_path / name).mkdir()
        if config is not None:
            (tmp_path / name / "config.json").write_text(json.dumps(config))
    places = {name: tmp_path / name for name in [*architectures, "OUT"]} | {"DIR": directory}
    status, out, err = run("export", *[places.get(word, word) for word in words])
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(match, err), err
    assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--branches", "1"], "folded into heads"),
        (["--sample"], "--engine torch for --sample"),
        (["--repetition-penalty", "1.1"], "repetition penalty"),
        (["--precision", "bfloat16"], "--quantization"),
    ],
    ids=str,
)
def test_what_the_engine_cannot_do_is_one_clear_line(run, exported, words, match):
    status, out, err = run("translate", "--engine", "ctranslate2", exported, *words, given="rot\n")
    assert status == 2
    assert out == ""
    assert match in err
    assert len(err.rstrip("\n").split("\n")) == 1


def test_an_exported_folder_given_as_a_model_directory_says_what_to_do(run, exported, tmp_path):
    again = ["export", exported, "--format", "onnx", "--output", tmp_path / "again"]
    for words in (["translate", exported], ["serve", exported, "--port", 0], again):
        status, _, err = run(*words, given="rot\n")
        assert status == 2
        assert err.count("\n") == 1
        assert "is what multibranch export wrote" in err
        assert "--engine ctranslate2" in err


def test_a_model_directory_given_to_the_engine_says_what_to_do(run, directory):
    status, _, err = run("translate", "--engine", "ctranslate2", directory, given="rot\n")
    assert status == 2
    assert "--format ctranslate2" in err
