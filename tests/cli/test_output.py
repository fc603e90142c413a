"""Results as people see them."""

from pathlib import Path

from multibranch.cli.output import print_result
from multibranch.cli.prepare import _show_result


def test_a_narrow_terminal_cuts_no_value(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"model": "runs/multi30k-de-en-mat/transformer", "parameters": 29_435_904, "loss": 1.5}]
    print_result(rows, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    cells = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    whole = ["".join(part.strip() for part in column) for column in zip(*cells, strict=True)]
    assert whole == ["runs/multi30k-de-en-mat/transformer", "29,435,904", "1.50"]


def test_no_word_is_broken_where_there_is_room_for_all(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    rates = "0.15 0.35 0.05 0.40"
    row = {"trial": 1, "loss": 4.4, "branches": "1 2 3 1", "drop_branch": rates, "drop_ffn": rates}
    row |= {"ffn_branches": "2 2 2 2", "drop_kind": "branch", "parameters": 29_435_904}
    print_result([row], as_json=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    whole = [word for name in row for word in name.split("_")] + rates.split() + ["29,435,904"]
    assert set(whole) <= set(out.split())


def test_numbers_of_a_column_have_equally_many_decimals(capsys):
    shares, differences, losses = (0.891, 0.9, 1.0), (4e-7, 0.5, 0.25), (5.37, 0.9, 11_500.0)
    columns = zip(shares, differences, losses, strict=True)
    print_result(
        [{"share": a, "difference": b, "loss": c, "rate": None} for a, b, c in columns],
        as_json=False,
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [line.replace("│", "").split() for line in lines] == [
        ["0.891", "4e-07", "5.37", "–"],
        ["0.900", "0.5", "0.90", "–"],
        ["1.000", "0.25", "11,500.00", "–"],
    ]


def test_numbers_stand_right_in_their_column_where_one_is_missing_too(capsys):
    rows = [{"model": "first", "loss": 10.5}, {"model": "a", "loss": None}]
    print_result([*rows, {"model": "b", "loss": 2.25}], as_json=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert lines == ["│ first │ 10.50 │", "│ a     │     – │", "│ b     │  2.25 │"]


def test_what_was_prepared_is_not_cut_either(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "45")
    facts = {"pairs": 1_234_567, "dropped": {"too long": 98_765}, "source_unknown": 0}
    facts |= {"source_tokens": 123_456_789, "target_tokens": 123_456_789, "target_unknown": 0}
    sizes = {"source_size": 100, "target_size": 100, "shared": True}
    _show_result(Path("x"), {"splits": {"train": facts}, "vocabulary": sizes}, True)
    out = capsys.readouterr().out
    assert "…" not in out and max(map(len, out.splitlines())) <= 45
