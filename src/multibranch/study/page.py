"""A study's results as one self-contained page, for light and dark screens."""

import html
from collections.abc import Sequence
from importlib import resources

from multibranch.study.layout import (
    Block,
    Line,
    Sheet,
    by_corpus,
    keys_of,
    ordered,
    repeating,
    sheets,
)
from multibranch.study.markdown import (
    DIFFERENCE,
    averages,
    difference,
    how_to_read,
    number,
    sheet_title,
    verdicts,
)
from multibranch.study.plots import figures
from multibranch.study.results import CellResult, Results, signed

_e = html.escape


def page(results: Results) -> str:
    """The whole page."""
    study = results.study
    style = resources.files("multibranch.study").joinpath("report.css").read_text("utf-8")
    parts = [f"<h1>{_e(study.title)}</h1>"]
    parts += [f"<p>{_e(text)}</p>" for text in (study.about, study.claims) if text]
    parts += [f'<p class="verdict">{_e(text)}</p>' for text in verdicts(results)]
    parts.append(f'<p class="soft">{_marked(how_to_read(results))}</p>')
    made = sheets(study, results)
    first = next((sheet for sheet in made if sheet.compared), None)
    parts += [_sheet(sheet, explained=sheet is first) for sheet in made]
    drawn = figures(results)
    if drawn:
        parts.append("<h2>Figures</h2>")
    for title, text, svg in drawn:
        parts.append(
            f"<figure><figcaption><b>{_e(title)}.</b> {_e(text)}</figcaption>"
            f'<div class="wide">{svg}</div></figure>'
        )
    parts.append(_cells(results))
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_e(study.title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _marked(text: str) -> str:
    """Text with `code` in it as HTML."""
    pieces = _e(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))


def _sheet(sheet: Sheet, *, explained: bool) -> str:
    blocks = "".join(_block(block, sheet) for block in sheet.blocks)
    under = f" Under each score: {DIFFERENCE}" if explained else ""
    cells = (cell for block in sheet.blocks for line in block.lines for cell in line.paper)
    mark = " △: its usual baseline." if any(cell.triangle for cell in cells) else ""
    return (
        f"<section><h2>{_e(sheet_title(sheet))}</h2><p>The paper: <i>{_e(sheet.caption)}</i> Its "
        f"numbers, on the right, are for its own corpus.{mark}{under}</p>{blocks}</section>"
    )


def _block(block: Block, sheet: Sheet) -> str:
    sign = "ρ=" if sheet.rates else ""
    count = len(block.columns)
    heads = "".join(f"<th>{sign}{_e(column)}</th>" for column in block.columns)
    paper_heads = heads.replace("<th>", '<th class="paper">', 1)
    best = _best([cell for line in block.lines for cell in line.ours])
    if not sheet.rates:  # columns are tasks or scores, each with a best of its own
        best = [
            one for column in zip(*(line.ours for line in block.lines)) for one in _best(column)
        ]
    rows = "".join(_line(line, best, block.renamed) for line in block.lines)
    names = ["paper’s row", "here"] if block.renamed else ["model"]
    labels = "".join(f'<th class="left">{name}</th>' for name in names)
    title = f"<caption>{_e(block.heading)}</caption>" if block.heading else ""
    return (
        f'<div class="wide"><table class="sheet">{title}<thead><tr>{"<th></th>" * len(names)}'
        f'<th colspan="{count}">here</th><th class="paper" colspan="{count}">the paper</th></tr>'
        f"<tr>{labels}{heads}{paper_heads}</tr>"
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _best(cells: Sequence[CellResult | None]) -> list[CellResult]:
    found = [cell for cell in cells if cell is not None]
    return [max(found, key=lambda cell: cell.mean)] if found else []


def _line(line: Line, best: list[CellResult], renamed: bool) -> str:
    ours = "".join(_ours(cell, best) for cell in line.ours)
    paper = "".join(
        f'<td class="{"paper" if place == 0 else ""}{" best" if cell.bold else ""}">'
        f"{_e(cell.printed)}{'△' if cell.triangle else ''}</td>"
        for place, cell in enumerate(line.paper)
    )
    label = f'<th class="left">{_e(line.label)}</th>'
    own = f'<td class="left soft">{_e(line.ours_label)}</td>' if renamed else ""
    return f"<tr>{label}{own}{ours}{paper}</tr>"


def _ours(cell: CellResult | None, best: list[CellResult]) -> str:
    if cell is None:
        return '<td class="soft">–</td>'
    found, under = cell.fairest, ""
    if found is not None:
        kind = "up" if found.mark == "▲" else "down" if found.mark == "▼" else "soft"
        under = f'<div class="{kind}">{signed(found.mean)}{found.mark}</div>'
    spread = "" if cell.deviation is None else f'<span class="soft"> ±{cell.deviation:.2f}</span>'
    mark = " best" if any(cell is one for one in best) else ""
    return (
        f'<td class="number{mark}" title="{_e(cell.cell)}, seeds {cell.seeds}">'
        f"{cell.mean:.2f}{spread}{under}</td>"
    )


def _millions(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:.1f}M"


def _cells(results: Results) -> str:
    """All cells, each with its key, and the command that repeats one."""
    cells, study = ordered(results), results.study
    heads = ["score", "− baseline", "− continued", "BP", "ppl", "cosine", "size", "updates"]
    heads += ["seconds", "seeds"]
    values = {cell.cell: _values(cell) for cell in cells}
    told = [
        place for place in range(len(heads)) if any(one[place] != "–" for one in values.values())
    ]
    shown = "".join(f"<th>{_e(heads[place])}</th>" for place in told)
    rows = []
    for corpus, some in by_corpus(cells).items():
        if len(study.corpora) > 1:
            rows.append(f'<tr><th class="left" colspan="{len(told) + 1}">{_e(corpus)}</th></tr>')
        for cell in some:
            numbers = "".join(
                f'<td class="number">{_e(values[cell.cell][place])}</td>' for place in told
            )
            name = _e(study.title_of(cell.experiment))
            keys = " ".join(map(_e, keys_of(cell, study)))
            rows.append(
                f'<tr class="cell"><td class="left">{name}</td>{numbers}</tr>'
                f'<tr><td class="left" colspan="{len(told) + 1}"><code>{keys}</code></td></tr>'
            )
    usual, others = repeating(results)
    commands = f"<p>What repeats a row, with its key for KEY: <code>{_e(usual)}</code></p>"
    if others:
        lines = "".join(f"<li><code>{_e(line)}</code></li>" for line in dict.fromkeys(others))
        commands += f"<p>These were run with other options:</p><ul>{lines}</ul>"
    return (
        "<section><h2>Every cell, and the command that repeats it</h2>"
        f'<p class="soft">{" ".join(_EXPLAINED[heads[place]] for place in told[1:])}</p>'
        f'<div class="command">{commands}</div>'
        f'<div class="wide"><table class="cells"><thead><tr><th class="left">model</th>{shown}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _values(cell: CellResult) -> list[str]:
    return [
        str(cell),
        difference(cell, "baseline"),
        difference(cell, "continued"),
        *averages(cell),
        _millions(cell.records[0].get("parameters")),
        number(cell.average("updates"), ",.0f"),
        f"{cell.average('wall_seconds') or 0:.0f}",
        str(len(cell.seeds)),
    ]


_EXPLAINED = {
    "− baseline": "− baseline: the difference to the standard Transformer, mean ± deviation over "
    "the seeds that both have.",
    "− continued": "− continued: the difference to the standard Transformer trained further for as "
    "many updates as a second stage has.",
    "BP": "BP: brevity penalty of BLEU on tokens, below 1 if translations are shorter than the "
    "references.",
    "ppl": "ppl: perplexity on the validation set.",
    "cosine": "cosine: between the weights of two branches.",
    "size": "size: parameters, in millions.",
    "updates": "updates: of the model’s own stage.",
    "seconds": "seconds: of one trial, from start to scores.",
    "seeds": "seeds: how many.",
}
