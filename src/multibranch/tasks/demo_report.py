"""The demo's page: what was trained, what it scored, how certain the difference is."""

import base64
import html
from pathlib import Path
from typing import Any

COLOURS = {"baseline": "#6b7280", "continued": "#d97706", "mat": "#2563eb"}

STYLE = """
:root { color-scheme: light dark;
  --ink: #1f2937; --paper: #ffffff; --line: #e5e7eb; --soft: #6b7280 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --paper: #111827; --line: #374151; --soft: #9ca3af } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--line) }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.soft { color: var(--soft); font-size: .9rem }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0 0 1.2rem }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
svg { width: 100%; height: auto } svg text { fill: var(--soft); font-size: 12px }
img { max-width: 100%; background: #fff; border-radius: 6px }
code { overflow-wrap: anywhere }
.wide { overflow-x: auto }
@media (max-width: 40rem) {
  th, td { padding: .4rem .25rem; font-size: .85rem }
  .dot { margin-right: .25em }
  dl { grid-template-columns: 1fr } dt { margin-top: .4rem; font-size: .85rem }
  svg text { font-size: 20px } }
"""


def verdict(results: dict[str, Any]) -> str:
    """The difference between MAT and continued baseline in a sentence, whichever way it falls."""
    found = results["mat_against_continued"]
    difference, p = found["difference"], found["p_value"]
    side = "above" if difference > 0 else "below" if difference < 0 else "from"
    certainty = (
        "more than chance would explain"
        if found["significant"]
        else "which chance alone could explain"
    )
    return (
        f"The MAT is {abs(difference):.2f} BLEU {side} the continued Transformer, {certainty} "
        f"(paired bootstrap over the test sentences, p = {p:.3f}). This is the result of one "
        f"seed; --seed gives others."
    )


def write(
    path: Path,
    stages: list[Any],
    results: dict[str, Any],
    examples: list[dict[str, str]],
    picture: Path | None,
) -> None:
    """Write the page, self-contained but for the link to the attention's own page."""
    titles = {stage.name: stage.title for stage in stages}
    body = f"""<h1>Multi-branch attention on a built-in corpus</h1>
<p>A standard Transformer was trained on {results["settings"]["pairs"]:,} sentence pairs from a
generated, German-like language to English. It was then branched out and trained further with
drop-branch (the MAT), and, as the control, continued unchanged for the same number of updates.</p>
<h2>Results</h2>
{_table(stages)}
<p class="soft">BLEU: <code>{html.escape(results["signature"])}</code>,
{results["settings"]["test_sentences"]:,} test sentences that no model has seen.
Seconds are of training alone, each stage's own.</p>
<p>{html.escape(verdict(results))}</p>
<h2>Validation loss</h2>
{_chart(stages)}
<h2>Some translations</h2>
{"".join(_example(example, titles) for example in examples)}
<h2>What the branches look at</h2>
<p>Encoder-decoder attention of the MAT, one map a branch;
<a href="attention.html">all layers, interactively</a>.</p>
{_image(picture) if picture is not None else ""}
"""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>multibranch demo</title><style>{STYLE}</style><body>{body}</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _image(picture: Path) -> str:
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<img alt="Attention maps of every branch" src="data:image/png;base64,{data}">'


def _table(stages: list[Any]) -> str:
    rows = []
    for stage in stages:
        cosine = "–" if stage.similarity is None else f"{stage.similarity:.3f}"
        rows.append(
            f'<tr><td><span class="dot" style="background:{COLOURS[stage.name]}"></span>'
            f'{html.escape(stage.title)}</td><td class="number">{stage.bleu:.2f}</td>'
            f'<td class="number">{stage.parameters:,}</td><td class="number">{stage.seconds:.0f}'
            f'</td><td class="number">{cosine}</td></tr>'
        )
    return (
        '<div class="wide"><table><tr><th>model</th><th class="number">BLEU</th>'
        '<th class="number">parameters</th><th class="number">seconds</th>'
        '<th class="number">branches’ cosine</th></tr>'
        f"{''.join(rows)}</table></div>"
    )


def _chart(stages: list[Any]) -> str:
    """Validation loss by update as lines; the second stages start where the first one ended."""
    end, reached = stages[0].curve[-1]
    lines = {stages[0].name: stages[0].curve}
    for stage in stages[1:]:
        lines[stage.name] = [(end, reached), *((end + x, y) for x, y in stage.curve)]
    points = [point for line in lines.values() for point in line]
    right, low, high = max(x for x, _ in points), min(y for _, y in points), points[0][1]
    width, height, left, base = 760, 300, 44, 270

    def place(x: float, y: float) -> str:
        down = base - (y - low) / max(high - low, 1e-9) * (base - 16)
        return f"{left + x / max(right, 1) * (width - left - 8):.1f},{down:.1f}"

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Validation loss">']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + share * (high - low)
        at = place(0, value).split(",")[1]
        parts.append(
            f'<line x1="{left}" x2="{width - 8}" y1="{at}" y2="{at}" stroke="var(--line)"/>'
            f'<text x="4" y="{float(at) + 4:.1f}">{value:.2f}</text>'
        )
    branched = place(end, low).split(",")[0]
    parts.append(
        f'<line x1="{branched}" x2="{branched}" y1="16" y2="{base}" stroke="var(--soft)" '
        f'stroke-dasharray="3 4"/><text x="{branched}" y="{height - 8}" text-anchor="middle">'
        f"{end}: branched out</text>"
    )
    for name, line in lines.items():
        path = " ".join(place(x, y) for x, y in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2.2"/>'
        )
    parts.append(f'<text x="{width - 8}" y="{height - 8}" text-anchor="end">{right} updates</text>')
    return "".join(parts) + "</svg>"


def _example(example: dict[str, str], titles: dict[str, str]) -> str:
    names = {"source": "source", "reference": "reference", **titles}
    rows = [
        f"<dt>{html.escape(title)}</dt><dd>{html.escape(example[key])}</dd>"
        for key, title in names.items()
    ]
    return f"<dl>{''.join(rows)}</dl>"
