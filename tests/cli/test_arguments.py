"""What the command line refuses before any verb runs, and values that none of them can take."""

import os
import subprocess
import sys

import pytest

from multibranch.cli import SPINS, main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "multibranch: the following arguments are required: VERB; see multibranch --help"),
        (
            ["trian", "configs/builtin.yaml"],
            "multibranch: argument VERB: invalid choice: 'trian'; did you mean train?; "
            "see multibranch --help",
        ),
        (
            ["study", "rnu", "builtin"],
            "multibranch study: argument list|run|report|import|search: invalid choice: 'rnu'; "
            "did you mean run?; see multibranch study --help",
        ),
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
        (
            ["branch", "runs/mat", "--branches", "0", "--output", "runs/new"],
            "branch: --branches must be at least 1, not 0",
        ),
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


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["none", "count", "policy"],
)
def test_threads_of_the_command_soon_sleep_where_nothing_else_is_asked(given, found):
    said = (
        "import os, sys\n"
        "from multibranch.cli import main\n"
        "sys.argv = ['multibranch', '--version']\n"
        "assert 'torch' not in sys.modules\n"
        "try: main()\n"
        "except SystemExit: print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    rest = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", said], env=rest | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == found
