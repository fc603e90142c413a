"""The figures of a report as SVG that takes the page's own colours, light or dark."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multibranch.errors import counted, needed
from multibranch.study.experiment import Experiment
from multibranch.study.layout import ordered
from multibranch.study.results import CellResult, Results

# Stand-ins that become the page's colours in the SVG text.
INK, LINE = "#010203", "#040506"
STYLES = {"scratch": ":", "pretrained": ":", "continued": "--", "proximal": "-"}
CONTROL = "continued"  # the baseline that was trained on, in legends
LARGEST = 100.0  # a loss that is still drawn
PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def figures(results: Results) -> list[tuple[str, str, str]]:
    """(title, explanation, SVG) of every figure that the results have points for."""
    made = []
    every = ordered(results)  # legends name the models in the order of the tables
    for corpus in dict.fromkeys(cell.experiment.corpus for cell in every):
        cells = [cell for cell in every if cell.experiment.corpus == corpus]
        where = f" ({corpus})" if len(results.study.corpora) > 1 else ""
        for title, draw in (
            ("Score against ρ", _score_by_rate),
            ("Learning curves", _curves),
            ("Branch similarity against ρ", _similarity),
            ("Score after pruning", _pruned),
        ):
            drawn = draw(cells, results)
            if drawn is not None:
                made.append((title + where, *drawn))
    return made


Drawn = tuple[str, str] | None  # what a figure shows, in words, and its SVG


def _figure(draw: Callable[[Any], None], *, x: str, y: str, panels: int = 1) -> str:
    matplotlib = needed("matplotlib", install="matplotlib", purpose="Drawing a report")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {
        "font.family": "sans-serif",
        "font.sans-serif": ["system-ui", "DejaVu Sans"],
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "multibranch",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": LINE,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": LINE,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }
    with matplotlib.rc_context(style):
        across = min(panels, 3)
        down = -(-panels // across)
        size = (6.6 if panels == 1 else 3.6 * across + 1.2, 3.3 * down)
        figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True)
        figure.patch.set_alpha(0)
        axes = list(grid.flat)
        for place, one in enumerate(axes):
            one.patch.set_alpha(0)
            one.set_xlabel(x)
            if place % across == 0:
                one.set_ylabel(y)
            one.set_visible(place < panels)
        draw(axes if panels > 1 else axes[0])
        found: dict[str, Any] = {}
        for one in axes:
            handles, labels = one.get_legend_handles_labels()
            found |= dict(zip(labels, handles))
        if found:
            labels = sorted(found, key=lambda label: label == CONTROL)  # after the models
            axes[across - 1].legend(
                [found[label] for label in labels],
                labels,
                loc="upper left",
                bbox_to_anchor=(1.01, 1.0),
                handlelength=3.2,  # strokes can be told from each other
            )
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    text = buffer.getvalue()
    # On a narrow screen it scrolls rather than shrinks to letters that nobody can read.
    text = f'<svg style="min-width: {5 * size[0]:g}rem"' + text[text.index("<svg") + 4 :]
    text = text.replace(INK, "currentColor").replace(LINE, "var(--line)")
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)


def _families(cells: Sequence[CellResult]) -> dict[tuple, list[CellResult]]:
    """Cells that differ in ρ alone, by what they share."""
    found: dict[tuple, list[CellResult]] = {}
    for cell in cells:
        one = cell.experiment
        if one.start in ("scratch", "proximal"):
            kind = (one.start, one.width, one.hidden * one.ffn_branches, one.drop_kind, one.heads)
            depth = f"{one.encoder_layers}+{one.decoder_layers}"
            rest = (one.r_drop, one.branches, one.ffn_branches)
            found.setdefault((*kind, depth, *rest), []).append(cell)
    for family in found.values():
        family.sort(key=lambda cell: cell.experiment.drop_branch)
    return found


def _panels(cells: Sequence[CellResult]) -> dict[str, dict[str, list[CellResult]]]:
    """{panel: {line: cells}}: one panel a start, shape and depth, one line a number of branches."""
    panels: dict[str, dict[str, list[CellResult]]] = {}
    families = _families(cells)
    shapes = {(key[1], key[2]) for key in families}
    depths = {key[5] for key in families}
    for (start, width, hidden, kind, heads, depth, *rest), family in families.items():
        r_drop, branches, ffn = rest
        rates = {cell.experiment.drop_branch for cell in family}
        if len(rates) < 2:
            continue
        name = {"scratch": "from scratch", "proximal": "proximal initialisation"}[start]
        if len(shapes) > 1:
            name += f", d={width}, d_h={hidden}"
        if len(depths) > 1:
            name += f", {depth} layers"
        line = f"$N_a={branches}$"
        if any(key[-1] != 1 for key in families):
            line += f", $N_f={ffn}$"
        if len({key[4] for key in families}) > 1:
            line += f", $M={heads}$"
        if kind == "head":
            line += ", heads dropped"
        if r_drop:
            line += f", R-Drop {r_drop:g}"
        panels.setdefault(name, {})[line] = family
    return panels


def _score_by_rate(cells: Sequence[CellResult], results: Results) -> Drawn:
    panels = _panels(cells)
    if not panels:
        return None
    controls = {
        name: next((results.find(f[0].experiment.continued) for f in lines.values()), None)
        for name, lines in panels.items()
    }
    drawn = [cell for lines in panels.values() for family in lines.values() for cell in family]
    references = [cell for cell in controls.values() if cell is not None]
    low, high = score_range([*drawn, *references])
    looks = _looks(panels)

    def draw(axes: Any) -> None:
        for axis, (name, lines) in zip([axes] if len(panels) == 1 else axes, panels.items()):
            for label, family in sorted(lines.items()):
                axis.errorbar(
                    [cell.experiment.drop_branch for cell in family],
                    [cell.mean for cell in family],
                    yerr=[cell.deviation or 0 for cell in family],
                    marker="o",
                    markersize=4,
                    linewidth=1.6,
                    capsize=2,
                    label=label,
                    **looks[label],
                )
            control = controls[name]
            if control is not None:
                axis.axhline(control.mean, linestyle="--", linewidth=1.2, color=INK, label=CONTROL)
            axis.set_title(name, fontsize=10)
            rates = {c.experiment.drop_branch for f in lines.values() for c in f}
            axis.set_xticks(sorted(rates))
            if low < high:
                room = 0.08 * (high - low) + 0.1
                axis.set_ylim(low - room, high + room)

    text = "Each line is one model with several ρ; bars are deviations over seeds."
    text += f" {CONTROL.capitalize()}: the baseline, trained further." if references else ""
    outside = sum(cell.mean < low for cell in drawn)
    if outside:
        text += f" Outside, far below the others: {counted(outside, 'model')}."
    return text, _figure(draw, x="ρ", y=_metric(results), panels=len(panels))


def score_range(cells: Sequence[CellResult]) -> tuple[float, float]:
    """The scores between which lines are drawn, deviations included.

    A few models that fell apart would flatten all the others: they are left outside. Where most
    are far from the best, all are inside.
    """
    best = max(cell.mean for cell in cells)
    near = [cell for cell in cells if cell.mean >= 0.94 * best]
    inside = near if 2 * len(near) >= len(cells) else cells
    low = min(cell.mean - (cell.deviation or 0) for cell in inside)
    return low, max(cell.mean + (cell.deviation or 0) for cell in inside)


def _similarity(cells: Sequence[CellResult], results: Results) -> Drawn:
    panels = {
        name: {
            label: [c for c in family if c.similarity is not None]
            for label, family in lines.items()
        }
        for name, lines in _panels(cells).items()
    }
    panels = {n: {k: f for k, f in lines.items() if f} for n, lines in panels.items()}
    panels = {name: lines for name, lines in panels.items() if lines}
    if not panels:
        return None

    looks = _looks(panels)

    def draw(axes: Any) -> None:
        for axis, (name, lines) in zip([axes] if len(panels) == 1 else axes, panels.items()):
            for label, family in sorted(lines.items()):
                rates = [cell.experiment.drop_branch for cell in family]
                axis.plot(
                    rates,
                    [cell.similarity for cell in family],
                    marker="o",
                    markersize=4,
                    label=label,
                    **looks[label],
                )
                axis.set_xticks(sorted(rates))
            axis.set_title(name, fontsize=10)

    text = "Mean cosine between the weights of two branches of a layer. 1: equal."
    return text, _figure(draw, x="ρ", y="cosine between branches", panels=len(panels))


def _curves(cells: Sequence[CellResult], results: Results) -> Drawn:
    """The baseline, its continuation, and the best cell of each number of branches and start."""
    chosen: dict[tuple, CellResult] = {}
    for cell in cells:
        one = cell.experiment
        if one.start == "pruned" or len(mean_curve([r["curve"] for r in cell.records])[0]) < 2:
            continue
        if one.branches == 1 and one.drop_branch:  # the baseline is what others are held against
            continue
        kind = (one.start, one.branches, one.r_drop)
        if kind not in chosen or cell.mean > chosen[kind].mean:
            chosen[kind] = cell
    if not chosen:
        return None
    colours = _curve_colours(list(chosen.values()))

    def draw(axis: Any) -> None:
        ends = []
        for cell in chosen.values():
            updates, values = mean_curve([record["curve"] for record in cell.records])
            axis.plot(
                updates,
                values,
                linewidth=1.5,
                label=_short(cell),
                color=colours[cell.cell],
                linestyle=STYLES[cell.experiment.start],
            )
            ends.append(min(values))
        axis.set_ylim(*perplexity_range(ends))

    text = "Perplexity on the validation set, means over seeds; of each kind of model the one with "
    text += "the best score."
    return text, _figure(draw, x="updates of its own stage", y="validation perplexity")


def mean_curve(curves: Sequence[Sequence[Sequence[Any]]]) -> tuple[list[float], list[float]]:
    """Updates, and the perplexity at each: the mean over seeds of the loss there.

    Seeds that stopped after another number of updates have other points, between which a line is
    drawn. A point that is no number, as of a training that fell apart, is left out.
    """
    known = [
        [(update, loss) for update, _, loss in curve if loss is not None and abs(loss) < LARGEST]
        for curve in curves
    ]
    known = [points for points in known if len(points) > 1]
    if not known:
        return [], []
    first, last = max(points[0][0] for points in known), min(points[-1][0] for points in known)
    updates = [update for update, _ in known[0] if first <= update <= last]
    losses = [
        np.interp(updates, [u for u, _ in each], [loss for _, loss in each]) for each in known
    ]
    return updates, [float(value) for value in np.exp(np.mean(losses, axis=0))]


def _curve_colours(cells: Sequence[CellResult]) -> dict[str, str]:
    """One colour for each N_a, or, where R-Drop is tried, for each N_a with and without it."""
    kinds = sorted({(cell.experiment.branches, cell.experiment.r_drop) for cell in cells})
    if not any(r_drop for _, r_drop in kinds):
        return {cell.cell: _colour(cell) for cell in cells}
    places = {kind: place % len(PALETTE) for place, kind in enumerate(kinds)}
    return {c.cell: PALETTE[places[c.experiment.branches, c.experiment.r_drop]] for c in cells}


def perplexity_range(ends: Sequence[float]) -> tuple[float, float]:
    """The perplexities between which curves are drawn: the end of every one is inside."""
    return min(ends) * 0.97, max(min(ends) * 1.9, max(ends) * 1.1)


def _pruned(cells: Sequence[CellResult], results: Results) -> Drawn:
    lines: dict[str, list[tuple[int, float, float]]] = {}
    cells = [cell for cell in cells if cell.experiment.start == "pruned"]
    more = _more([cell.experiment for cell in cells])
    for cell in cells:
        one = cell.experiment
        if one.keep is not None:
            parent = None if one.parent is None else results.find(one.parent)
            name = f"$N_a={one.branches}$, ρ={one.drop_branch:g}, " + (
                "proximal" if one.before == "proximal" else "from scratch"
            )
            name += f", R-Drop {one.r_drop:g}" if one.r_drop else ""
            name += more(one)
            points = lines.setdefault(name, [])
            points.append((one.keep, cell.mean, cell.deviation or 0))
            if parent is not None:
                whole = (one.branches, parent.mean, parent.deviation or 0)
                points += [] if whole in points else [whole]
    if not lines:
        return None

    def draw(axis: Any) -> None:
        for number, (label, points) in enumerate(sorted(lines.items())):
            kept, means, spread = zip(*sorted(points))
            look = {"marker": "o", "markersize": 4, "capsize": 2, **line_look(number)}
            axis.errorbar(kept, means, yerr=spread, label=label, **look)
        axis.set_xticks(sorted({kept for points in lines.values() for kept, _, _ in points}))

    text = "Score with only some of the branches kept, without training again."
    return text, _figure(draw, x="branches kept", y=_metric(results))


def _more(experiments: Sequence[Experiment]) -> Callable[[Experiment], str]:
    """What else tells an experiment from these others, where they do not share it."""
    parts: list[Callable[[Experiment], str]] = [
        lambda one: f", {one.width}/{one.hidden}",
        lambda one: f", $N_f={one.ffn_branches}$",
        lambda one: f", $M={one.heads}$",
        lambda one: f", {one.encoder_layers}+{one.decoder_layers} layers",
        lambda one: ", heads dropped" if one.drop_kind == "head" else "",
    ]
    differ = [part for part in parts if len({part(one) for one in experiments}) > 1]
    return lambda one: "".join(part(one) for part in differ)


def line_look(number: int) -> dict[str, str]:
    """Colour and stroke of one line of many: when the colours have run out, another stroke."""
    strokes = ("-", "--", ":")
    again, place = divmod(number, len(PALETTE))
    return {"color": PALETTE[place], "linestyle": strokes[again % len(strokes)]}


def _colour(cell: CellResult) -> str:
    """One colour for each N_a, in every figure."""
    return PALETTE[(cell.experiment.branches - 1) % len(PALETTE)]


def _looks(panels: dict[str, dict[str, list[CellResult]]]) -> dict[str, dict[str, str]]:
    """Colour and stroke of every line by its label, the same in all panels.

    Where no panel has two lines of the same N_a, each has the colour of its N_a.
    """
    families = {label: family[0] for lines in panels.values() for label, family in lines.items()}
    if all(
        len({family[0].experiment.branches for family in lines.values()}) == len(lines)
        for lines in panels.values()
    ):
        return {label: {"color": _colour(cell)} for label, cell in families.items()}
    return {label: line_look(number) for number, label in enumerate(sorted(families))}


def _short(cell: CellResult) -> str:
    one = cell.experiment
    if one.branches == 1:
        name = "Transformer, continued" if one.start == "continued" else "Transformer"
    else:
        name = f"MAT $N_a={one.branches}$, " + (
            "proximal" if one.start == "proximal" else "from scratch"
        )
    if one.drop_branch:
        name += f", ρ={one.drop_branch:g}" + (" of heads" if one.drop_kind == "head" else "")
    return f"{name}, R-Drop {one.r_drop:g}" if one.r_drop else name


def _metric(results: Results) -> str:
    names = {"multi_bleu": "BLEU (tokenised)", "bleu": "BLEU", "sentence_bleu": "sentence BLEU"}
    return names.get(results.study.metric, results.study.metric)
