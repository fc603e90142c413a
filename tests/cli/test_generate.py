"""`multibranch generate`: code in a terminal, in a pipe and as JSON; what it refuses."""

import io
import json
from pathlib import Path

import pytest
import torch

from multibranch.cli import main
from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.directory import read_config, save_model
from multibranch.nn import MultiBranchTransformer
from multibranch.tasks.code import CodeGenerator
from multibranch.text.code import code_to_text, text_to_code
from multibranch.training.config import CODE_LENGTH

DESCRIPTION = "count all players ."


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt one function by heart: a few updates on one pair."""
    folder = tmp_path_factory.mktemp("generate")
    data = PreparedData.open(builtin("code", folder / "data", pairs=300, valid=20, test=20, jobs=1))
    text = data.text
    torch.manual_seed(1)
    network = MultiBranchTransformer(
        source_vocabulary=text.source_size,
        target_vocabulary=text.target_size,
        width=32,
        hidden=32,
        encoder_layers=1,
        decoder_layers=1,
        branches=2,
        dropout=0.0,
        share_embeddings="target",
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    code = "def count_players ( players ) : NEWLINE INDENT return len ( players ) NEWLINE DEDENT"
    source = torch.tensor(text.encode([DESCRIPTION], side="source"))
    target = torch.tensor(text.encode([code], side="target"))
    begun = torch.cat([torch.zeros(1, 1, dtype=torch.int64), target[:, :-1]], dim=1)
    for _ in range(40):
        optimiser.zero_grad()
        logits = network(source, begun)
        torch.nn.functional.cross_entropy(logits[0], target[0]).backward()
        optimiser.step()
    return save_model(folder / "model", network.eval(), text, extra={"task": "code"})


def test_a_pipe_gets_plain_code_that_python_runs(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(model), DESCRIPTION]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# 1: parses, score -0.")
    assert "def count_players(players):\n    return len(players)\n" in out
    assert "\x1b" not in out
    scope: dict = {}
    exec(out, scope)
    assert scope["count_players"]([1, 2]) == 2


def test_a_terminal_gets_highlighted_code(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["generate", str(model), DESCRIPTION]) == 0
    shown = screen.getvalue()
    assert "\x1b[94;49mdef\x1b[0m" in shown
    assert "\x1b[32m# 1: parses" in shown


def test_the_n_best_say_each_whether_it_parses(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(model), DESCRIPTION, "--n-best", "4", "--beam", "6"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")]
    assert [head.split(":")[0] for head in heads] == ["# 1", "# 2", "# 3", "# 4"]
    verdicts = [head.split(": ")[1].split(",")[0] for head in heads]
    assert verdicts[0] == "parses"
    assert "does not parse" in verdicts
    scores = [float(head.rsplit(" ", 1)[1]) for head in heads]
    assert scores == sorted(scores, reverse=True)


def test_descriptions_may_stand_behind_options(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(model), "--json", DESCRIPTION, "--n-best", "1", "returns the sum ."]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["source"] for line in lines] == [DESCRIPTION, "returns the sum ."]
    with pytest.raises(SystemExit) as stopped:
        main(["generate", str(model), "--n-best", "1", DESCRIPTION, "--bem", "3"])
    assert stopped.value.code == 2
    assert "unrecognised arguments: --bem 3; see" in capsys.readouterr().err


def test_json_has_what_the_model_wrote_and_its_format(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(model), DESCRIPTION, "--n-best", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["line"], said["source"], said["language"]) == (1, DESCRIPTION, "python")
    (found,) = CodeGenerator.load(model).generate([DESCRIPTION], n_best=3)
    assert [each["tokens"] for each in said["hypotheses"]] == [each.text for each in found]
    for each, hypothesis in zip(said["hypotheses"], found):
        assert each["code"] == code_to_text(hypothesis.text, "python")
        assert each["score"] == pytest.approx(hypothesis.score, abs=1e-6)
        assert each["unknowns"] == hypothesis.unknowns
    best = said["hypotheses"][0]
    assert text_to_code(best["code"], "python") == best["tokens"]


def test_lines_of_standard_input_are_descriptions(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f"{DESCRIPTION}\nreturn the players\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["generate", str(model), "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["source"] for each in said] == [DESCRIPTION, "return the players"]
    assert said[0]["hypotheses"][0]["parses"] is True
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["generate", str(model)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {DESCRIPTION}\n# 1: parses")
    assert "\n# return the players\n# 1: " in out


@pytest.mark.parametrize("blank", ["", " \t"], ids=["empty", "blanks"])
def test_a_blank_line_stays_blank_and_neither_parses_nor_fails_to(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], blank: str
) -> None:
    (tmp_path / "in.txt").write_text(f"{DESCRIPTION}\n{blank}\n{DESCRIPTION}\n")
    words = ["generate", str(model), "--input", str(tmp_path / "in.txt"), "--valid-only"]
    assert main([*words, "--json", "--n-best", "2"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (said[1]["line"], said[1]["source"]) == (2, blank)
    (nothing,) = said[1]["hypotheses"]
    assert (nothing["code"], nothing["tokens"], nothing["parses"]) == ("", "", None)
    assert said[0]["hypotheses"] == said[2]["hypotheses"]
    assert said[0]["hypotheses"][0]["parses"] is True
    assert main(words) == 0
    before, after = capsys.readouterr().out.split("\n\n\n")  # one blank line ends every program
    assert before.startswith(f"# {DESCRIPTION}\n# 1: parses") and after == f"{before}\n\n"


def test_valid_only_lists_what_parses_first(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", str(model), DESCRIPTION, "--beam", "6", "--n-best", "4", "--json"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)["hypotheses"]
    assert main([*asked, "--valid-only"]) == 0
    valid = json.loads(capsys.readouterr().out)["hypotheses"]
    order = [each["parses"] for each in valid]
    assert order == sorted(order, reverse=True)
    assert sum(order) >= sum(each["parses"] for each in plain)
    assert len(valid) == len(plain) == 4


def test_words_that_the_model_has_never_seen_are_named(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(model), "count all zebras and zebras ."]) == 0
    captured = capsys.readouterr()
    assert captured.err == "not in the model's vocabulary: zebras\n"
    assert "zebras" not in captured.out


@pytest.mark.parametrize("verb", ["generate", "translate"])
def test_quiet_leaves_standard_error_to_errors(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    (tmp_path / "in.txt").write_text("count all zebras .\n")
    words = [verb, str(model), "--input", str(tmp_path / "in.txt"), "--max-length", "40"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 2
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr() == (told.out, "")
    assert main([*words, "--quiet", "--n-best", "9"]) == 2
    assert "cannot give the 9 best" in capsys.readouterr().err


def test_help_says_how_long_code_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, said, shows_ratio in (
        ("generate", f"(default: the model directory's, else {CODE_LENGTH})", False),
        ("translate", "(default: a multiple of the source's)", True),
    ):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert f"no output has more tokens {said}" in shown
        assert ("--max-ratio" in shown) == shows_ratio


@pytest.mark.parametrize("option", ["--max-ratio", "--max-extra"])
def test_code_has_no_multiple_of_its_description_for_a_bound(
    model: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["generate", str(model), DESCRIPTION, option, "2"])
    assert refused.value.code == 2
    assert option in capsys.readouterr().err


def test_a_java_model_writes_java(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _copy(model, tmp_path / "java", target="java")
    assert main(["generate", str(tmp_path / "java"), DESCRIPTION]) == 0
    out = capsys.readouterr().out
    assert out.startswith("// 1: does not parse")
    assert "def count_players(players)" in out


def _copy(model: Path, folder: Path, *, target: str = "python", task: str = "code") -> Path:
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    text = json.loads((folder / "text.json").read_text())
    (folder / "text.json").write_text(json.dumps({**text, "target": target}))
    config = read_config(folder)
    (folder / "config.json").write_text(json.dumps({**config, "task": task}))
    return folder


def test_bad_input_is_one_line_and_exit_status_2(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*words: str) -> str:
        assert main(["generate", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("multibranch generate: ")
        assert captured.err.count("\n") == 1
        return captured.err

    assert "'cobol', which is no language of the task code: it knows java and python" in refused(
        str(_copy(model, tmp_path / "cobol", target="cobol")), DESCRIPTION
    )
    other = _copy(model, tmp_path / "other", task="translation")
    assert "is a model of the task translation, not of code" in refused(str(other), DESCRIPTION)
    assert "no such folder" in refused(str(tmp_path / "none"), DESCRIPTION)
    assert "config.json is no model directory: it is a file" in refused(
        str(model / "config.json"), DESCRIPTION
    )
    assert "a description is empty" in refused(str(model), DESCRIPTION, " ")
    for number, said in enumerate(([1], {"max_length": "long"})):
        odd = _copy(model, tmp_path / f"odd-{number}")
        (odd / "config.json").write_text(json.dumps({**read_config(odd), "decoding": said}))
        assert "config.json is no set of search options" in refused(str(odd), DESCRIPTION)
    asked = ("--n-best", "9")
    assert "a beam of 5 cannot give the 9 best" in refused(str(model), DESCRIPTION, *asked)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\n\xff\n")))
    assert "line 2 of standard input is not UTF-8" in refused(str(model))


def test_translate_and_interactive_say_that_a_line_of_code_has_no_layout(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(*words: str) -> tuple[str, str]:
        given = io.TextIOWrapper(io.BytesIO(f"{DESCRIPTION}\n".encode()))
        monkeypatch.setattr("sys.stdin", given)
        assert main([words[0], str(model), *words[1:], "--max-length", "40"]) == 0
        return tuple(capsys.readouterr())

    for verb in ("translate", "interactive"):
        out, error = called(verb)
        assert out == "def count_players(players):     return len(players) \n"
        first = error.splitlines()[0]
        assert first.startswith(f"multibranch {verb}: {model} writes code")
        assert "`multibranch generate`" in first
        out, error = called(verb, "--tokenised")
        assert text_to_code(code_to_text(out.strip(), "python"), "python") == out.strip()
        assert "generate" not in error
    out, error = called("translate", "--json")
    code = json.loads(out)["hypotheses"][0]["text"]
    assert code == "def count_players(players):\n    return len(players)\n"
    assert "generate" not in error


def test_a_file_is_read_and_written_whole(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, wanted = tmp_path / "in.txt", tmp_path / "out.py"
    given.write_text(f"{DESCRIPTION}\n\nfrobnicate all\n", "utf-8")
    assert main(["generate", str(model), "--input", str(given), "--output", str(wanted)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "line 3: not in the model's vocabulary: frobnicate\n" in captured.err
    assert captured.err.splitlines()[-1].startswith("wrote code for 3 lines, ")
    text = wanted.read_text("utf-8")
    assert text.startswith(f"# {DESCRIPTION}\n# 1: parses, score ")
    assert "def count_players(players):" in text
    words = ["generate", str(model), "--input", str(given), "--json", "--quiet"]
    assert main([*words, "--output", str(wanted)]) == 0
    assert "wrote code" not in capsys.readouterr().err
    assert [json.loads(line)["line"] for line in wanted.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a text", "--input", "in.txt"], "give descriptions, or a file of them with --input"),
        (["--input", "none.txt"], "cannot read none.txt: No such file or directory"),
        (["--input", "in.txt", "--output", "in.txt"], "is the file that is read"),
        (["a text", "--output", "none/out"], "cannot write none/out"),
    ],
)
def test_files_that_cannot_be_are_refused(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a line\n")
    assert main(["generate", str(model), *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err.splitlines()[-1] and captured.out == ""
    assert (tmp_path / "in.txt").read_text() == "a line\n"
