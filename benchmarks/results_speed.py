"""The sections of docs/results.md on speed, and on what fast paths and other engines change."""

from pathlib import Path
from typing import Any

from multibranch.study.markdown import grid
from multibranch.study.results import signed
from results_source import note_of, source_of

# Records of before the decoder in eight bits stepped through a block with one call. Newer ones say
# how it stepped (`int8_step`), so that one that is made again needs no place here.
ONE_CALL_AN_OPERATION = ("export-ted-cpu",)


def _int8_step(path: Path, content: dict[str, Any]) -> str:
    """How the decoder in eight bits stepped, as a sentence; empty where nothing is known of it."""
    if said := content.get("int8_step"):
        return f"Our int8 steps with {said}."
    if path.stem not in ONE_CALL_AN_OPERATION:
        return ""
    return (
        "**Taken before our int8 stepped through a whole decoder block with one call.** With that "
        "it is faster, above all with one sentence at a time, and rounds a little differently "
        "([what changed](export.md#measured))."
    )


def branching_cost(path: Path, content: dict[str, Any]) -> list[str]:
    """What branches cost in fine-tuning, as benchmarks/branching_cost.py records it."""
    rows = []
    for measured in content["measured"]:
        way = "CUDA graphs" if measured["graphs"] else "one operation after the other"
        rows += [[way, name, f"{ratio:.3f}"] for name, ratio in measured["ratio"].items()]
    header = ["updates run as", "encoder", "time of an update, relative to the plain encoder"]
    return [f"### {path.stem}", grid(header, rows), source_of(path, content)]


def loss_curves(path: Path, content: dict[str, Any]) -> list[str]:
    """Training with and without the fast paths, as benchmarks/loss_curves.py records it."""
    rows = [
        [
            str(row["update"]),
            f"{row['fast']:.4f}",
            f"{row['reference']:.4f}",
            f"{row['difference']:+.4f}",
            f"{row['deviation_between_seeds']:.4f}",
            f"{row['deviation_of_differences']:.4f}",
        ]
        for row in content["comparison"]
    ]
    header = ["update", "fast", "reference", "difference", "deviation between seeds"]
    header.append("deviation of differences")
    seeds = len({run["seed"] for run in content["runs"]})
    text = f"Means over {seeds} seeds of the training loss; the last row is the validation loss."
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, text)]


def profile(path: Path, content: dict[str, Any]) -> list[str]:
    """Where the time of an update goes, as benchmarks/profile_training.py records it."""
    paths = [row for row in content["results"] if "by_kind" in row]
    kinds = list(dict.fromkeys(kind for row in paths for kind in row["by_kind"]))
    header = ["an update", *(row["name"] for row in paths)]
    rows = [
        ["ms on the clock", *(f"{row['milliseconds']:.2f}" for row in paths)],
        ["kernels", *(f"{row['kernels_an_update']:,.0f}" for row in paths)],
        ["ms in them", *(f"{row['milliseconds_in_kernels']:.2f}" for row in paths)],
        *(
            [f"ms: {kind}", *(f"{row['by_kind'].get(kind, 0):.2f}" for row in paths)]
            for kind in kinds
        ),
    ]
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, note_of(content))]


def training(path: Path, content: dict[str, Any]) -> list[str]:
    """Speed of training, as benchmarks/training.py records it."""
    rows = []
    for row in content.get("results", []):
        memory, first = row.get("peak_memory_gib"), row.get("seconds_to_first_update")
        rows.append(
            [
                row["name"],
                f"{row['tokens_per_second']:,.0f}",
                f"{row.get('parameters', 0) / 1e6:.1f}M",
                "–" if memory is None else f"{memory:.2f}",
                "–" if first is None else f"{first:.0f}",
            ]
        )
    header = ["model", "target tokens a second", "size", "peak GiB", "seconds to first update"]
    parts = [f"### {path.stem}"] + ([grid(header, rows)] if rows else [])
    if "startup" in content:
        seconds = ", ".join(f"{each:.1f}" for each in content["startup"]["seconds"])
        parts.append(f"Seconds from {content['startup']['name']}: {seconds}.")
    return [*parts, source_of(path, content, note_of(content))]


def decoding(path: Path, content: dict[str, Any]) -> list[str]:
    """Speed of decoding, as benchmarks/decoding.py records it."""
    engines = content["engines"]
    slow = next(row["seconds"] for row in engines if row["engine"] == "multibranch, float32")
    rows = [
        [
            row["engine"],
            f"{row['sentences_a_second']:,.1f}",
            f"{row['tokens_a_second']:,.0f}",
            f"{slow / row['seconds']:.2f}",
            "–" if row["times_generate"] is None else f"{row['times_generate']:.2f}",
            row["outputs_as_ours"],
        ]
        for row in engines
    ]
    header = ["engine", "sentences a second", "tokens a second", "times our float32"]
    header += ["times `generate`", "outputs as our float32"]
    model = content["model"]
    text = (
        f"{content['sentences']:,} sentences of {content['corpus']}, {content['source_tokens']:,} "
        f"tokens; MAT {model['branches']}/{model['width']}/{model['hidden']} with "
        f"{content['parameters'] / 1e6:.1f}M parameters, beam {content['beam']}; weights: "
        f"{content['weights']}."
    )
    more = filter(None, (text, _int8_step(path, content)))
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, *more)]


def exported(path: Path, content: dict[str, Any]) -> list[str]:
    """What exported and quantised models write, as benchmarks/export.py records it."""
    rows = [
        [
            row["engine"],
            f"{row['bleu']:.2f}",
            signed(row["bleu_above_ours"]),
            f"{100 * row['same_best_share']:.1f}%",
            f"{row['largest_score_difference_where_same']:.1g}",
        ]
        for row in content["engines"]
    ]
    header = ["engine", "BLEU", "− our float32", "same best output", "scores differ by at most"]
    signature = content["engines"][0]["signature"]
    text = f"{content['sentences']:,} sentences, beam {content['beam']}. Score: `{signature}`."
    more = filter(None, (text, _int8_step(path, content)))
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, *more)]


def serving(path: Path, content: dict[str, Any]) -> list[str]:
    """The service under load, as benchmarks/serving.py records it."""
    rows = [
        [
            str(row["clients"]),
            f"{row['sentences_a_second']:,.1f}",
            *(f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")),
            f"{row['answered']:,}",
            f"{row['refused_503']:,}",
            str(sum(row["errors"].values())),
            f"{row['memory_first_mb']:.0f} → {row['memory_last_mb']:.0f}",
        ]
        for row in content["clients"]
    ]
    header = ["clients", "sentences a second", "p50 ms", "p95 ms", "p99 ms", "answered"]
    header += ["answered 503", "errors", "memory, MB"]
    text = f"{content['model']}, engine {content['engine']}, {content['seconds']:g} seconds a row."
    text = text[0].upper() + text[1:]
    return [f"### {path.stem}", grid(header, rows), source_of(path, content, text)]
