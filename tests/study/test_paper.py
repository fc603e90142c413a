"""The paper's numbers in our data against the paper's LaTeX source, both ways."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from multibranch.study import cells, experiments, in_text, tables

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper" / "000_5a76f645a30495bc.txt"


@pytest.fixture(scope="module")
def latex() -> str:
    if not PAPER.is_file():
        pytest.skip("the paper's source does not lie beside the project (../shared/paper)")
    return PAPER.read_text(encoding="utf-8")


# Reading the LaTeX: a table is its caption, its label and a list of rows of plain strings.


def plain(text: str) -> str:
    """A cell's LaTeX as plain text; bold is marked by *, the triangle by ^."""
    text = re.sub(r"\\bm\{(.*?)\}", r"*\1", text).replace(r"^\triangle", "^")
    text = re.sub(r"\\cite\{.*?\}|\\text\{(.*?)\}|\\texttt\{(.*?)\}", r"\1\2", text)
    text = re.sub(r"\\multi(?:column|row)\{.*?\}\{.*?\}\{(.*)\}", r"\1", text.strip())
    for macro, sign in {
        r"\leftrightarrow": "↔",
        r"\to": "→",
        r"\rho": "ρ",
        r"\Delta": "Δ",
        r"\\": " ",
        "~": " ",
        "$": "",
        "\\": "",
        "%": "",
    }.items():
        text = text.replace(macro, sign)
    return " ".join(text.split())


def braces(text: str, start: int) -> str:
    """What stands between the brace at `start` and its partner."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0) if text[index - 1] != "\\" else 0
        if depth == 0:
            return text[start + 1 : index]
    raise AssertionError("braces do not close")


def parse(latex: str) -> list[tuple[str, str, list[list[str]]]]:
    """(label, caption, rows) of every table in the order of the source."""
    found = []
    for match in re.finditer(r"\\caption\{", latex):
        caption = braces(latex, match.end() - 1)
        tail = latex[match.end() :]
        if not tail[len(caption) :].lstrip("}\n\t ").startswith(r"\begin{tabular}"):
            continue  # a figure
        start = tail.index(r"\begin{tabular}") + len(r"\begin{tabular}")
        start += len(braces(tail, start)) + 2
        body = tail[start : tail.index(r"\end{tabular}")]
        body = re.sub(r"\\(?:toprule|midrule|bottomrule|hline)|\\label\{.*?\}", "", body)
        rows = [[plain(cell) for cell in line.split("&")] for line in body.split("\\\\")]
        label = re.search(r"\\label\{(tab:.*?)\}", tail)
        assert label
        found.append((label[1], plain(caption), [row for row in rows if any(row)]))
    return found


# Both sides as the same kind of fact: (table, row, column, number as printed with its marks).

Fact = tuple[str, str, str, str]
HEADINGS = ("Standard Transformer + Drop Branch", "MAT + Drop Branch")


def facts_of_latex(label: str, rows: list[list[str]]) -> list[Fact]:
    """Every number in a table's body under its row's first cell and its column's heading."""
    header, *body = rows
    if header[2:] == ["Python"]:  # two levels of headings
        header = ["Algorithm", "Java BLEU", "Java PoV", "Python BLEU", "Python PoV"]
        body = body[1:]
    blocks: list[Sequence[int]] = [
        range(len(header))
    ]  # the columns of each table in the table, the first one naming the row
    if header.count(header[0]) == 2:  # two tables side by side
        blocks = [range(5), range(5, 10)]
    if header.count("#Params(M)") == 2:  # two languages side by side, with one first column
        blocks = [range(4), (0, 4, 5, 6)]
    facts = []
    for row in body:
        for first, *others in blocks:
            inside = [column for column in others if column < len(row) and row[column]]
            facts += [(label, row[first], header[column], row[column]) for column in inside]
    # Headings over parts of a table are no facts of a row.
    return [fact for fact in facts if not set(HEADINGS) & {fact[1], fact[3]}]


def facts_of_data(number: int) -> list[Fact]:
    """The same facts from our data: sizes, ρ and Δ columns are put where the print has them."""
    table = tables()[number - 1]
    facts: list[Fact] = []
    for part in table.parts:
        for row in part.rows:
            first = row.label
            if number in (1, 14, 16, 17, 18, 19):
                first += f"/{row.millions}M"
            if number == 11:
                first += f"/{row.millions} M"
            if number in (3, 4, 6, 7):
                name = "#Params(M)" if number == 3 else "#Param (M)"
                facts.append((table.label, first, name, str(row.millions)))
            if number in (4, 6, 7):
                facts.append((table.label, first, "ρ", str(row.cells[0].drop_branch)))
            values = ["*" * cell.bold + cell.printed + "^" * cell.triangle for cell in row.cells]
            heads = list(part.printed_columns)
            if number == 3:
                values = [f"{v} / {c.drop_branch}" for v, c in zip(values, row.cells)]
                heads = [f"{head} / ρ" for head in heads]
            if number == 7:  # two scores in one cell
                values = [f"{values[0]} / {values[1]}", *values[2:]]
                heads = heads[1:]
            if row.delta is not None:
                sign = "+" if row.delta > 0 and row.cells[0].drop_kind == "head" else ""
                values.append(f"{sign}{row.delta:.2f}")
                heads.append("Δ")
            facts += [(table.label, first, head, value) for head, value in zip(heads, values)]
    return facts


@pytest.mark.parametrize("number", range(1, 28))
def test_every_number_of_the_table_is_in_print_and_every_printed_one_in_the_table(
    latex: str, number: int
) -> None:
    label, _, rows = parse(latex)[number - 1]
    assert label == tables()[number - 1].label
    printed, ours = Counter(facts_of_latex(label, rows)), Counter(facts_of_data(number))
    assert printed - ours == Counter(), "in print, but not in the data"
    assert ours - printed == Counter(), "in the data, but not in print"
    assert sum(ours.values()) >= 4


def test_there_are_as_many_tables_as_captions_of_tables(latex: str) -> None:
    assert len(parse(latex)) == len(tables()) == 27
    assert latex.count(r"\begin{tabular}") == 27
    assert [table.number for table in tables()] == list(range(1, 28))
    appendix = latex.index(r"\appendix")
    for table in tables():
        assert table.appendix == (latex.index(rf"\label{{{table.label}}}") > appendix)


def test_captions_are_the_papers(latex: str) -> None:
    for table, (_, caption, _) in zip(tables(), parse(latex)):
        assert caption.startswith(table.caption)


def test_the_check_notices_a_wrong_a_missing_and_an_invented_number(latex: str) -> None:
    label, _, rows = parse(latex)[1]
    ours = Counter(facts_of_data(2))
    for changed in (
        [[cell.replace("35.94", "35.95") for cell in row] for row in rows],
        rows[:-1],
        [*rows, ["(5,1024)", "35.00", "35.00", "35.00", "35.00", "0.00"]],
    ):
        assert Counter(facts_of_latex(label, changed)) != ours


def test_scores_in_the_text_are_there(latex: str) -> None:
    for entry in in_text():
        assert latex.count(entry["quote"]) == 1
        for value in entry["values"]:
            assert f"${value}$" in entry["quote"]


# The numbers among themselves: these need no source.


def test_one_experiment_has_one_score_wherever_it_is_printed() -> None:
    """The errata list the only places where two tables disagree."""
    differing = set()
    for settings, group in experiments():
        for cell in group:
            first = next(c for c in group if (c.metric, c.test) == (cell.metric, cell.test))
            if round(first.value, cell.decimals) != cell.value:
                shape = (settings["branches"], settings["width"], settings["hidden"])
                differing.add((first.table, cell.table, settings["task"], *shape))
    assert differing == {
        (3, 16, "iwslt14-es-en", 1, 512, 1024),
        (3, 17, "iwslt14-en-es", 1, 256, 1024),
        (3, 18, "iwslt17-fr-en", 1, 512, 1024),
        (3, 19, "iwslt17-en-fr", 1, 512, 1024),
    }
    assert any("Four baselines" in erratum for erratum in tables()[2].errata)


@pytest.mark.parametrize(
    ("number", "against"),
    [(2, 1), (15, 1), (20, 16), (21, 17), (22, 18), (23, 19), (12, 2)]
    + [(24, 20), (25, 21), (26, 22), (27, 23)],
)
def test_changes_are_right_or_said_to_be_wrong(number: int, against: int) -> None:
    best = {}
    for cell in cells(against):
        shape = (cell.branches, cell.width, cell.hidden)
        best[shape] = max(cell.value, best.get(shape, 0.0))
    rows = tables()[number - 1].parts[0].rows
    for row in rows:
        cell = row.cells[0]
        change = max(c.value for c in row.cells) - best[cell.branches, cell.width, cell.hidden]
        correct = row.delta if row.delta_recomputed is None else row.delta_recomputed
        assert round(change, 2) == correct
        assert row.delta_recomputed != row.delta
    wrong = any(row.delta_recomputed is not None for row in rows)
    assert wrong == any("delta_recomputed" in erratum for erratum in tables()[number - 1].errata)


def test_cells_are_complete_experiments() -> None:
    assert len(cells()) == 597
    for cell in cells():
        if cell.cited:
            continue
        assert cell.branches and cell.width and cell.hidden and cell.heads and cell.encoder_layers
        assert cell.width % cell.heads == 0
        assert cell.drop_branch is not None or cell.table == 9
        if cell.branches == 1:
            assert cell.proximal is False


def test_experiments_gather_the_scores_of_one_model() -> None:
    settings, group = next(
        (s, g) for s, g in experiments(7) if s["branches"] == 2 and s["drop_branch"] == 0.2
    )
    assert settings["encoder_layers"] == 12
    assert [(c.test, c.metric, c.value) for c in group] == [
        ("newstest2014", "multi-bleu", 30.8),
        ("newstest2014", "sacrebleu", 30.2),
        ("newstest2018", "sacrebleu", 43.7),
        ("newstest2019", "sacrebleu", 40.4),
    ]
    # Table 14 repeats ρ=0.2 and 0.3 of Table 1: 10 architectures, 6 values of ρ.
    both = {tuple(s.values()) for number in (1, 14) for s, _ in experiments(number)}
    assert len(both) == 60
