"""Results as people see them."""

from multibranch.cli.output import print_result


def test_a_narrow_terminal_cuts_no_value(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"model": "runs/multi30k-de-en-mat/transformer", "parameters": 29_435_904, "loss": 1.5}]
    print_result(rows, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    cells = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    whole = ["".join(part.strip() for part in column) for column in zip(*cells, strict=True)]
    assert whole == ["runs/multi30k-de-en-mat/transformer", "29,435,904", "1.50"]
