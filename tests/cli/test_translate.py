"""`multibranch translate` and `interactive`: lines in, lines out, or one clear line."""

import io
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import reference_decoding as reference
from multibranch.cli import main
from multibranch.decoding import Translator

LINES = ["Der Mann läuft.", "", "Ein Hund sieht die Frau, und das Haus?", "rot"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "one"
    reference.save_model_directory(place, branches=3)
    return place


@pytest.fixture(scope="module")
def translator(folder) -> Translator:
    return Translator.load(folder, device="cpu")


class Result:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Run the command in this process on some bytes of standard input."""

    def run(*words: object, given: bytes | str = b"") -> Result:
        content = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
        status = main([str(word) for word in words])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(status, out.decode(), err.decode())

    return run


def test_who_gives_text_in_place_of_a_model_learns_where_it_goes(run, folder, tmp_path):
    (tmp_path / "input.de").write_text("rot\n")
    file = tmp_path / "input.de"
    for word, what in ((LINES[0], "there is no such folder"), (file, "it is a file")):
        result = run("translate", folder, "--beam", "2", word)
        assert (result.status, result.out) == (2, "")
        assert result.err == (
            f"multibranch translate: {word} is no model directory: {what}; what to translate is "
            f"read from standard input, as in `multibranch translate {folder} < FILE`\n"
        )


@pytest.mark.parametrize("verb", ["translate", "interactive"])
def test_int8_without_its_kernels_says_so_once_but_not_quietly(run, folder, verb, monkeypatch):
    monkeypatch.setattr("multibranch.nn.int8_kernels.lacking", lambda: "int8 is slower: a reason")
    words = [verb, folder, "--device", "cpu"]
    told = run(*words, "--precision", "int8", given="rot\nrot\n").err.splitlines()
    assert told.count(f"multibranch {verb}: int8 is slower: a reason") == 1
    assert "slower" not in run(*words, given="rot\n").err
    if verb == "translate":
        assert run(*words, "--precision", "int8", "--quiet", given="rot\n").err == ""


def test_one_line_out_for_every_line_in(run, folder, translator):
    result = run("translate", folder, given="\n".join(LINES))  # the last line has no end
    assert result.status == 0
    assert result.out.endswith("\n")
    assert result.out[:-1].split("\n") == translator.translate(LINES)
    assert result.out.split("\n")[1] == ""
    assert "translated 4 lines, " in result.err
    assert "translated 1 line, " in run("translate", folder, given="rot\n").err
    assert run("translate", folder, "--quiet", given="\n".join(LINES)).err == ""


def test_no_lines_give_no_lines(run, folder):
    result = run("translate", folder)
    assert (result.status, result.out) == (0, "")


def test_only_newlines_end_lines(run, folder, translator):
    given = "rot\u2028grün\r\nHund\x0cHaus\u0085und\n"
    result = run("translate", folder, given=given)
    lines = ["rot\u2028grün", "Hund\x0cHaus\u0085und"]
    assert result.out[:-1].split("\n") == translator.translate(lines)


def test_chunks_change_nothing(run, folder, translator):
    lines = LINES * 5
    result = run("translate", folder, "--chunk", 3, "--batch-tokens", 20, given="\n".join(lines))
    assert result.out[:-1].split("\n") == translator.translate(lines)


def test_tokenised_text_in_and_out(run, folder, translator):
    lines = ["Der Mann läuft .", "rot , grün"]
    result = run("translate", folder, "--tokenised", given="\n".join(lines))
    assert result.out[:-1].split("\n") == translator.translate(lines, tokenised=True)


def test_n_best_lines_have_number_score_and_text(run, folder, translator):
    result = run("translate", folder, "--n-best", 3, given="\n".join(LINES))
    rows = [line.split("\t") for line in result.out.splitlines()]
    expected = translator.translate(LINES, n_best=3)
    assert rows == [
        [str(number), f"{hypothesis.score:.4f}", hypothesis.text]
        for number, hypotheses in enumerate(expected, start=1)
        for hypothesis in hypotheses
    ]


def test_json_lines(run, folder, translator):
    result = run("translate", folder, "--json", "--n-best", 2, given="\n".join(LINES))
    objects = [json.loads(line) for line in result.out.splitlines()]
    assert [found["line"] for found in objects] == [1, 2, 3, 4]
    assert [found["source"] for found in objects] == LINES
    expected = translator.translate(LINES, n_best=2)
    for found, hypotheses in zip(objects, expected):
        texts = [hypothesis["text"] for hypothesis in found["hypotheses"]]
        assert texts == [hypothesis.text for hypothesis in hypotheses]
        assert found["hypotheses"][0]["score"] == pytest.approx(hypotheses[0].score, abs=1e-6)


def test_options_reach_the_search(run, folder, translator):
    options = {"beam": 4, "length_penalty": 1.5, "no_repeat_ngram": 2, "max_length": 6}
    words = [w for name, value in options.items() for w in (f"--{name.replace('_', '-')}", value)]
    result = run("translate", folder, *words, given="\n".join(LINES))
    assert result.out[:-1].split("\n") == translator.translate(LINES, **options)
    drawn = ("translate", folder, "--sample", "--top-k", 4, "--seed", 9)
    result = run(*drawn, given="\n".join(LINES))
    expected = translator.translate(LINES, sample=True, top_k=4, seed=9)
    assert result.out[:-1].split("\n") == expected


@pytest.mark.parametrize("option", ["--temperature", "--top-k", "--top-p", "--seed"])
def test_options_of_draws_need_them(run, folder, option):
    result = run("translate", folder, option, 1, given="\n".join(LINES))
    assert result.status == 2
    assert f"{option} is for draws: add --sample, or remove it" in result.err


def test_draws_have_no_beam(run, folder):
    result = run("translate", folder, "--sample", "--beam", 3, given="\n".join(LINES))
    assert result.status == 2
    assert "--beam is for searching, and --sample draws: remove one of them" in result.err
    assert run("translate", folder, "--sample", "--n-best", 9, given="rot").out.count("\n") == 9


def test_branches_count_from_one(run, folder):
    result = run("translate", folder, "--branches", "1,3", given="\n".join(LINES))
    chosen = Translator.load(folder, device="cpu", branches=[0, 2])
    assert result.out[:-1].split("\n") == chosen.translate(LINES)


def test_prefixes_from_a_file(run, folder, translator, tmp_path):
    (tmp_path / "prefixes").write_text("Ein\n\nund\n\n", encoding="utf-8")
    result = run("translate", folder, "--prefixes", tmp_path / "prefixes", given="\n".join(LINES))
    found = translator.generate(LINES, prefixes=["Ein", "", "und", ""])
    assert result.out[:-1].split("\n") == [hypotheses[0].text for hypotheses in found]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_another_number_of_prefixes_is_refused(run, folder, tmp_path, count):
    prefixes, lines, output = (tmp_path / name for name in ("prefixes", "lines", "output"))
    prefixes.write_text("Ein\n" * count, encoding="utf-8")
    lines.write_text("\n".join(LINES), encoding="utf-8")
    words = ("translate", folder, "--prefixes", prefixes, "--quiet", "--chunk", 2)
    result = run(*words, "--input", lines)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"{prefixes} has {count} lines and {lines} 4 lines: --prefixes needs" in result.err
    # A pipe is known to be longer or shorter only where one of them ends.
    result = run(*words, "--output", output, given="\n".join(LINES))
    said = "more prefixes than the 4 lines" if count > 4 else f"more lines than the {count} prefix"
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"there are {said}" in result.err
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--branches", "4"], "branches 1 to 3"),
        (["--branches", "0"], "there is no branch 0"),
        (["--branches", "eins"], "numbers separated by commas"),
        (["--beam", "2", "--n-best", "5"], "a beam of 2 cannot give the 5 best"),
        (["--input", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        (["--output", "/nowhere/at/all"], "cannot write /nowhere/at/all"),
        (["--batch-tokens", "0"], "--batch-tokens must be at least 1, not 0"),
        (["--batch-tokens", "-7"], "--batch-tokens must be at least 1, not -7"),
        (["--chunk", "0"], "--chunk must be at least 1, not 0"),
        (["--chunk", "9" * 20], "--chunk must be at most 1,000,000,000, not 99,999,999,"),
        (["--device", "quantum"], "--device: 'quantum' is no device"),
        (["--device", "mps"], "--device: 'mps' is no device"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(run, folder, words, message):
    result = run("translate", folder, *words, given="rot\n")
    assert (result.status, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["translate", "interactive"])
def test_cuda_graphs_are_refused_where_there_is_no_gpu(run, folder, verb):
    result = run(verb, folder, "--cuda-graphs", "--device", "cpu", given="rot\n")
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        f"multibranch {verb}: leave --cuda-graphs out: they need a GPU, and the device is cpu\n"
    )


def test_what_is_no_model_is_one_line_and_status_2(run, folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for place in (tmp_path / "nothing", empty):
        result = run("translate", place, given="rot\n")
        assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    reference.save_model_directory(tmp_path / "other", words=["ganz", "andere", "Wörter"])
    result = run("translate", folder, tmp_path / "other", given="rot\n")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "another vocabulary" in result.err


def test_a_byte_order_mark_is_no_part_of_the_first_line(run, folder, tmp_path):
    plain = run("translate", folder, "--json", "--quiet", given="Ein Hund.\r\nrot\r\n")
    marked = run("translate", folder, "--json", "--quiet", given="\ufeffEin Hund.\r\nrot\r\n")
    assert marked.out == plain.out
    assert json.loads(marked.out.splitlines()[0])["source"] == "Ein Hund."
    (tmp_path / "in").write_text("\ufeffEin Hund.\nrot\n", encoding="utf-8")
    read = run("translate", folder, "--json", "--quiet", "--input", tmp_path / "in")
    assert read.out == plain.out


def test_invalid_utf8_names_the_line_and_writes_nothing(run, folder, tmp_path):
    wrong = b"rot\n" * 9 + b"gr\xfcn\n" + b"rot\n" * 3
    output = tmp_path / "out"
    result = run("translate", folder, "--output", output, given=wrong)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "line 10 of standard input is not UTF-8 (byte 0xfc at position 3)" in result.err
    assert list(tmp_path.iterdir()) == []
    # A file is checked to its end before the first chunk is written.
    (tmp_path / "in").write_bytes(wrong)
    result = run("translate", folder, "--input", tmp_path / "in", "--chunk", 2)
    assert (result.status, result.out) == (2, "")
    assert f"line 10 of {tmp_path / 'in'} is not UTF-8" in result.err


def test_an_output_file_is_whole_or_what_it_was(run, folder, translator, tmp_path):
    output = tmp_path / "out"
    output.write_text("before", encoding="utf-8")
    assert run("translate", folder, "--output", output, given=b"rot\n\xff\n").status == 2
    assert output.read_text(encoding="utf-8") == "before"
    assert run("translate", folder, "--output", output, given="\n".join(LINES)).status == 0
    assert output.read_text(encoding="utf-8").split("\n")[:-1] == translator.translate(LINES)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_output_file_keeps_its_mode_and_a_new_one_has_the_usual(run, folder, tmp_path):
    output = tmp_path / "out"
    before = os.umask(0o027)
    try:
        assert run("translate", folder, "--output", output, given="rot\n").status == 0
        assert stat.S_IMODE(output.stat().st_mode) == 0o640
        output.chmod(0o606)
        assert run("translate", folder, "--output", output, given="rot\n").status == 0
        assert stat.S_IMODE(output.stat().st_mode) == 0o606
    finally:
        os.umask(before)


def test_an_output_behind_a_link_is_replaced_and_the_link_stays(run, folder, translator, tmp_path):
    (tmp_path / "kept").mkdir()
    link, behind = tmp_path / "link", tmp_path / "kept" / "out"
    link.symlink_to(behind)
    for given in ("rot", "Der Mann läuft."):  # to a file that is not there yet, and to one that is
        assert run("translate", folder, "--output", link, given=given).status == 0
        assert link.readlink() == behind
        assert behind.read_text(encoding="utf-8") == translator.translate([given])[0] + "\n"


@pytest.mark.parametrize("option", ["--input", "--prefixes"])
@pytest.mark.parametrize("kind", ["same", "link", "hard link"])
def test_an_output_that_is_the_input_is_refused(run, folder, tmp_path, option, kind):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("rot\n", encoding="utf-8")
    if kind == "link":
        output.symlink_to(source)
    elif kind == "hard link":
        output.hardlink_to(source)
    else:
        output = source
    result = run("translate", folder, option, source, "--output", output, given="rot\n")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"--output {output} is the file that is read as {source}" in result.err
    assert source.read_text(encoding="utf-8") == "rot\n"


def test_an_output_that_is_standard_input_is_refused(folder, tmp_path, monkeypatch, capsys):
    source = tmp_path / "source"
    source.write_text("rot\n", encoding="utf-8")
    with source.open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["translate", str(folder), "--output", str(source)]) == 2
    assert "is the file that is read as standard input" in capsys.readouterr().err
    assert source.read_text(encoding="utf-8") == "rot\n"


def test_an_output_that_is_no_file_is_written_to(run, folder, translator, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("translate", folder, "--output", pipe, given="rot").status == 0
        assert os.read(reading, 4096).decode() == translator.translate(["rot"])[0] + "\n"
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_interactive_answers_line_by_line(run, folder, translator):
    result = run("interactive", folder, given="\n".join(LINES))
    assert result.status == 0
    assert result.out[:-1].split("\n") == translator.translate(LINES)
    result = run("interactive", folder, "--n-best", 2, given="rot\n")
    [hypotheses] = translator.translate(["rot"], n_best=2)
    assert result.out == "".join(f"{h.score:8.4f}  {h.text}\n" for h in hypotheses)


def test_interactive_does_not_wait_for_the_next_line_and_ends_cleanly(folder, translator):
    """Through pipes: an answer comes before the next line is typed; Ctrl-C is one line, 130."""
    process = subprocess.Popen(
        [sys.executable, "-m", "multibranch", "interactive", str(folder), "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    for line in ("rot", "", "Der Mann läuft."):
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == translator.translate([line])[0] + "\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)  # before its input ends, which would be a clean end too
    out, err = process.communicate()
    assert process.returncode == 130
    assert out == b""
    assert err.decode() == "multibranch interactive: interrupted\n"


@pytest.mark.parametrize("errors", ["surrogateescape", "strict"])  # what locales differ in
def test_interactive_asks_again_for_a_line_that_is_not_utf_8(folder, translator, errors):
    """In a terminal whose characters are another encoding's."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "multibranch", "interactive", str(folder), "--device", "cpu"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": f"utf-8:{errors}"},
    )
    os.write(ours, b"l\xe4uft\nrot\n\x04")
    out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0
    assert out.decode().replace("> ", "") == translator.translate(["rot"])[0] + "\n"
    assert "That line is not UTF-8: type it again.\n" in err.decode()
