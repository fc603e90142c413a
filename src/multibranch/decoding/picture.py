"""The attention of every branch as one picture: a row a layer, a column a branch."""

from pathlib import Path
from typing import Any

from multibranch.decoding.attention import Inspection, LayerAttention
from multibranch.errors import needed

INK = "#1f2937"
FAINT = "#6b7280"
BRANCH_COLOURS = ["#1d4ed8", "#b45309", "#047857", "#7c3aed", "#be123c", "#0e7490"]
TITLES = {
    "cross": "Attention from the translation (rows) to the source (columns)",
    "encoder": "Attention within the source",
    "decoder": "Attention within the translation",
}
_CELL = 0.235  # inches a token
_MOST_TOKENS = 60  # more would make a picture that nobody can read


def draw(inspection: Inspection, path: str | Path, *, kind: str = "cross") -> Path:
    """Write the heat maps of one kind of attention as a PNG."""
    needed("matplotlib", install="'multibranch[study]'", purpose="Drawing").use("Agg")
    import matplotlib.pyplot as plt

    layers = inspection.of_kind(kind)
    rows = inspection.rows(kind)[:_MOST_TOKENS]
    columns = inspection.columns(kind)[:_MOST_TOKENS]
    branches = max(layer.weights.shape[0] for layer in layers)
    width, height = max(1.5, len(columns) * _CELL), max(1.5, len(rows) * _CELL)
    beside = 1.6 if branches > 1 else 0.0
    below = 0.45 + 0.075 * max(map(len, columns))  # for the columns' tokens
    with plt.rc_context({"font.family": "DejaVu Sans", "text.parse_math": False}):
        figure = plt.figure(
            figsize=(branches * (width + 0.3) + beside + 2.6, len(layers) * (height + below) + 2.0)
        )
        grid = figure.add_gridspec(
            len(layers),
            branches + (branches > 1),
            width_ratios=[width] * branches + [beside] * (branches > 1),
            left=0.09,
            wspace=0.12,
            hspace=below / height,
        )
        for number, layer in enumerate(layers):
            _draw_layer(figure, grid, number, layer, rows, columns)
        _write_head(figure, inspection, kind)
        figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.3, facecolor="white")
        plt.close(figure)
    return Path(path)


def _draw_layer(
    figure: Any,
    grid: Any,
    number: int,
    layer: LayerAttention,
    rows: list[str],
    columns: list[str],
) -> None:
    maps = layer.branches[:, : len(rows), : len(columns)].numpy()
    for branch, weights in enumerate(maps):
        axes = figure.add_subplot(grid[number, branch])
        colour = BRANCH_COLOURS[branch % len(BRANCH_COLOURS)]
        axes.imshow(weights, cmap=_shades(colour), vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(columns)), columns, rotation=90)
        axes.set_yticks(range(len(rows)), rows if branch == 0 else [])
        axes.tick_params(length=0, labelsize=8, labelcolor=INK, pad=3)
        axes.set_xticks([place - 0.5 for place in range(1, len(columns))], minor=True)
        axes.set_yticks([place - 0.5 for place in range(1, len(rows))], minor=True)
        axes.grid(which="minor", color="#eef0f3", linewidth=0.6)
        axes.tick_params(which="minor", length=0)
        for spine in axes.spines.values():
            spine.set_color("#d1d5db")
        if number == 0:
            axes.set_title(f"Branch {branch + 1}", fontsize=11, color=colour, weight="bold", pad=8)
        if branch == 0:
            axes.set_ylabel(f"Layer {layer.layer}", fontsize=10, color=INK, weight="bold")
            axes.yaxis.set_label_coords(-0.02, 1.0)
            axes.yaxis.label.set(rotation=0, ha="right", va="bottom")
    if len(maps) > 1:
        _draw_overlap(figure.add_subplot(grid[number, -1]), layer, title=number == 0)


def _draw_overlap(axes: Any, layer: LayerAttention, *, title: bool) -> None:
    """How much each two branches have in common, in per cent."""
    overlap = layer.overlap.numpy()
    axes.imshow(overlap, cmap=_shades("#374151"), vmin=0, vmax=1.25)
    names = [str(branch + 1) for branch in range(len(overlap))]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, labelsize=8, labelcolor=FAINT)
    for i, row in enumerate(overlap):
        for j, value in enumerate(row):
            ink = "white" if value > 0.62 else INK
            size = 9 if len(names) < 5 else 6
            axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=ink, size=size)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if title:
        axes.set_title("In common, %", fontsize=10, color=INK, pad=8)
    if layer.weight_similarity is not None:
        said = f"weights: cosine {layer.weight_similarity:.2f}".replace("-0.00", "0.00")
        axes.set_xlabel(said, fontsize=8, color=FAINT, labelpad=5)


def _write_head(figure: Any, inspection: Inspection, kind: str) -> None:
    wide, high = figure.get_size_inches()
    room = int(wide * 11)
    lines = [
        (TITLES[kind], 14, INK, "bold"),
        (_cut(inspection.source_text, room), 11, FAINT, "normal"),
        (_cut(inspection.target_text, room), 11, INK, "normal"),
    ]
    top = max(axes.get_position().y1 for axes in figure.axes)
    for number, (said, size, colour, weight) in enumerate(lines):
        place = top + (1.25 - 0.3 * number) / high
        figure.text(0.02, place, said, fontsize=size, color=colour, weight=weight, va="center")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _shades(colour: str) -> Any:
    """From white to the colour; attention of a tenth must already show, hence the early step."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    def mixed(part: float) -> tuple[float, ...]:
        return tuple(1 - part * (1 - channel) for channel in to_rgb(colour))

    steps = [(0.0, mixed(0.0)), (0.1, mixed(0.22)), (0.4, mixed(0.62)), (1.0, mixed(1.0))]
    return LinearSegmentedColormap.from_list("attention", steps)
