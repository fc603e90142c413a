"""A study's results as Markdown: for a repository, a pull request, docs/results.md."""

import shlex
from collections.abc import Sequence
from typing import Any

from multibranch.errors import counted
from multibranch.study.layout import Sheet, by_corpus, keys_of, ordered, repeating, sheets
from multibranch.study.plan import Study
from multibranch.study.results import CellResult, Results, signed


def markdown(results: Results, *, level: int = 1) -> str:
    """The whole report but for the figures."""
    study = results.study
    head = "#" * level
    parts = [f"{head} {study.title}", study.about, study.claims]
    parts += [how_to_read(results), *verdicts(results)]
    made, every = sheets(study, results), ordered(results)
    first = next((sheet for sheet in made if sheet.compared), None)
    for sheet in made:
        parts += [f"{head}# {sheet_title(sheet)}", _sheet(sheet, explained=sheet is first)]
    if made:  # most cells stand in the paper's tables, and all of them are many
        shown = {cell.cell for sheet in made for cell in sheet.found}
        rest = [cell for cell in every if cell.cell not in shown]
        if rest:
            parts += [f"{head}# Beside the paper's tables", *cells_tables(rest, study)]
        parts.append(f"{head}# Every cell, and the command that repeats it")
        folded = f"<details>\n<summary>All {counted(len(every), 'cell')}, with keys</summary>"
        parts += [commands(results), folded, *cells_tables(every, study), "</details>"]
    else:
        parts.append(f"{head}# Every cell, and the command that repeats it")
        parts += [*cells_tables(every, study), commands(results)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def how_to_read(results: Results) -> str:
    """What the numbers are, in a sentence or two."""
    seeds = sorted({len(cell.records) for cell in results.cells.values()})
    if seeds in ([], [1]):
        over = "one seed per cell"
    else:
        between = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        over = f"mean ± deviation over {between} seeds per cell"
        if len(seeds) > 1:
            over += " (differences: over the seeds that both have)"
    devices = sorted({record["device"] for record in results.records})
    seconds = sum(record.get("wall_seconds") or 0 for record in results.records)
    planned = {experiment.cell for experiment in results.study.experiments()}
    missing = len(planned - set(results.cells))
    have, cells = "has" if missing == 1 else "have", counted(len(planned), "cell")
    told = f" {missing} of the study's {cells} {have} not been run." if missing else ""
    if seeds == [1]:
        told += " One seed does not show how much seeds differ."
    return (
        f"{counted(len(results.records), 'trial')}, {over}, on {', '.join(devices)}, "
        f"{_duration(seconds)} of trials in total (some may have run in parallel). Score: "
        f"`{results.signature}`.{_marks(results)}{told}"
    )


def _marks(results: Results) -> str:
    """What marks mean, where something was tested."""
    if not results.comparisons:
        return ""
    # Comparisons tests that one score, whichever the tables show.
    of = "" if results.study.metric == "multi_bleu" else "of BLEU on tokens, not of this score, "
    return (
        " ▲ and ▼: significantly better and worse than what it is compared with, in every seed "
        f"tested (paired bootstrap {of}over the test sentences, p < 0.05)."
    )


def _duration(seconds: float) -> str:
    hours, minutes = seconds / 3600, seconds / 60
    return f"{hours:.1f} hours" if hours >= 1 else f"{minutes:.1f} minutes"


def verdicts(results: Results) -> list[str]:
    """What came out, whichever way it falls: each corpus's best model against both controls."""
    said = []
    for corpus in dict.fromkeys(cell.experiment.corpus for cell in results.cells.values()):
        mats = [
            cell
            for cell in results.cells.values()
            if cell.experiment.corpus == corpus
            and cell.experiment.branches > 1
            and cell.experiment.start in ("scratch", "proximal")
        ]
        if not mats:
            continue
        # The best of few seeds may be luck: only those with the most are compared.
        most = max(len(cell.seeds) for cell in mats)
        whole = [cell for cell in mats if len(cell.seeds) == most]
        # Chosen on the validation set, so that the test set is not what made it the best.
        best = max(whole, key=_on_validation)
        which = results.study.title_of(best.experiment).removeprefix("MAT").lstrip(", ")
        if len(whole) < len(mats):
            which += f"; among those with {counted(most, 'seed')}"
        line = f"{corpus}: the best MAT on the validation set ({which}) scores {best}"
        baseline = results.find(best.experiment.baseline)
        if baseline is not None and len(baseline.seeds) > most:
            line += f" ({counted(most, 'seed')})"
        for name, words in (("baseline", "the baseline"), ("continued", "the continued baseline")):
            found = best.against.get(name)
            if found is not None:
                side = "above" if found.mean >= 0 else "below"
                apart = f"{abs(found.mean):.2f}"
                far = f"{apart} {side} {words}" if float(apart) else f"as much as {words}"
                tested = (
                    f" (significant in {found.above + found.below} of "
                    f"{counted(found.tested, 'seed')})"
                    if found.tested
                    else ""
                )
                line += f", {far}{tested}"
        said.append(line + ".")
    return said


def _on_validation(cell: CellResult) -> float:
    values = [max((record.get("valid_bleu") or {"": 0.0}).values()) for record in cell.records]
    return sum(values) / len(values)


DIFFERENCE = (
    "the difference to the continued baseline if the model started from the baseline, otherwise to "
    "the baseline itself."
)


def sheet_title(sheet: Sheet) -> str:
    return f"Table {sheet.number} of the paper, on {sheet.corpus}"


def _sheet(sheet: Sheet, *, explained: bool) -> str:
    """Ours and the paper's in one table, in the paper's layout."""
    parts = [f"The paper: *{sheet.caption}* Its numbers are for its own corpus."]
    if explained:
        parts[0] += f" In brackets: {DIFFERENCE}"
    for block in sheet.blocks:
        sign = "ρ=" if sheet.rates else ""
        columns = [f"{sign}{column}" for column in block.columns]
        names = ["paper's row", "here"] if block.renamed else ["model"]
        header = [*names, *columns, *(f"paper {c}" for c in columns)]
        rows = [
            [
                line.label,
                *([line.ours_label] if block.renamed else []),
                *(cell_text(cell) for cell in line.ours),
                *(_paper(cell) for cell in line.paper),
            ]
            for line in block.lines
        ]
        if block.heading:
            parts.append(f"**{block.heading}**")
        parts.append(grid(header, rows))
    return "\n\n".join(parts)


def _paper(cell: Any) -> str:
    return f"**{cell.printed}**" if cell.bold else str(cell.printed)


def cell_text(cell: CellResult | None) -> str:
    """A score with its difference to the fairest reference there is."""
    if cell is None:
        return "–"
    score = tight(str(cell))
    return score if cell.fairest is None else f"{score} ({cell.fairest})"


def tight(text: str) -> str:
    """A number and its deviation so that no narrow column breaks them apart."""
    return text.replace(" ± ", "±")


def cells_tables(cells: Sequence[CellResult], study: Study) -> list[str]:
    """Cells with both differences and their keys: one table for each corpus, under its name."""
    parts = []
    for corpus, some in by_corpus(cells).items():
        if len(study.corpora) > 1:
            parts.append(f"**{corpus}**")
        parts.append(_cells_table(some, study))
    return parts


def _cells_table(cells: Sequence[CellResult], study: Study) -> str:
    header = ["model", "score", "− baseline", "− continued", "BP", "ppl", "cosine"]
    header += ["parameters", "updates", "seconds", "seeds", "key"]
    rows = []
    for cell in cells:
        rows.append(
            [
                study.title_of(cell.experiment),
                tight(str(cell)),
                *(tight(difference(cell, name)) for name in ("baseline", "continued")),
                *averages(cell),
                number(cell.records[0].get("parameters"), ","),
                number(cell.average("updates"), ",.0f"),
                f"{cell.average('wall_seconds') or 0:.0f}",
                ", ".join(map(str, cell.seeds)),
                f"`{shlex.join(keys_of(cell, study))}`",
            ]
        )
    told = [place for place in range(len(header)) if any(row[place] != "–" for row in rows)]
    return grid([header[place] for place in told], [[row[place] for place in told] for row in rows])


def averages(cell: CellResult) -> list[str]:
    """Brevity penalty of BLEU on tokens, perplexity and similarity of branches, over the seeds."""
    return [
        number(cell.average("brevity_penalty"), ".3f"),
        number(cell.perplexity, ".2f"),
        number(cell.similarity, "z.3f"),  # −0.000 would be none
    ]


def number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form).replace("-", "−")


def difference(cell: CellResult, name: str) -> str:
    found = cell.against.get(name)
    if found is None:
        return "–"
    spread = "" if found.deviation is None else f" ± {found.deviation:.2f}"
    return f"{signed(found.mean)}{spread}{found.mark}"


def commands(results: Results) -> str:
    """What repeats a cell: one command for all, and what was run otherwise."""
    usual, others = repeating(results)
    text = f"To repeat a row, replace KEY by its key:\n\n```sh\n{usual}\n```"
    if others:
        lines = "\n".join(dict.fromkeys(others))
        text += f"\n\nThese were run with other options:\n\n```sh\n{lines}\n```"
    return text


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
