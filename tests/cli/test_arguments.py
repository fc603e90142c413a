"""What the command line refuses before any verb runs, and values that none of them can take."""

import pytest

from multibranch.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "multibranch: the following arguments are required: VERB; see multibranch --help"),
        (
            ["serve", "runs/mat", "--port", "x"],
            "multibranch serve: argument --port: invalid int value: 'x'; "
            "see multibranch serve --help",
        ),
        (
            ["serve", "runs/mat", "--prot", "80"],
            "multibranch serve: unrecognised arguments: --prot 80; see multibranch serve --help",
        ),
        (
            ["study", "run"],
            "multibranch study run: the following arguments are required: NAME; "
            "see multibranch study run --help",
        ),
        (
            ["inspect", "runs/mat", "l\udce4uft"],
            "multibranch inspect: the argument l\\xe4uft is not UTF-8: convert it, or rename that "
            "file; see multibranch inspect --help",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == said + "\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--seed", "-1"], "demo: --seed must be 0 to 4,294,967,295, not -1"),
        (
            ["inspect", "runs/mat", "Ein Hund", "--output", ""],
            "inspect: --output is the beginning of file names, such as pictures/dog: give one",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_make_no_sense_are_one_line(words, said, capsys):
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"multibranch {said}\n")
