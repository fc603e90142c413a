"""Draw the attention of every branch for one sentence.

  multibranch inspect runs/mat "Ein Hund läuft über die Wiese."
  multibranch inspect runs/mat "Ein Hund läuft." --target "A dog runs." \\
      --output pictures/dog

Writes OUTPUT.png, with one heat map per branch and layer (target in rows, source in columns) and
how similar the branches are, and OUTPUT.html, a page that needs no network and also shows single
heads and the attention within the source and the translation.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from multibranch.cli.searching import add_device

    parser.add_argument("model", metavar="DIR", help="a model directory")
    parser.add_argument("sentence", help="what to translate")
    parser.add_argument(
        "--target", metavar="TEXT", help="its translation, instead of the model's own"
    )
    parser.add_argument(
        "--output",
        default="attention",
        metavar="PATH",
        help="where the pictures go, with or without .png or .html at the end (default: "
        "attention); missing folders are created",
    )
    parser.add_argument("--beam", type=int, metavar="INT", help="beam size (default: the model's)")
    add_device(parser, default="cpu")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> None:
    import sys
    import warnings
    from pathlib import Path

    from multibranch.cli.output import print_result
    from multibranch.decoding.attention import inspect
    from multibranch.decoding.page import write_page
    from multibranch.decoding.picture import draw
    from multibranch.decoding.translator import saved_options
    from multibranch.device import choose_device
    from multibranch.directory import load_model, load_text
    from multibranch.disk import check_place
    from multibranch.errors import UserError

    output = Path(args.output)
    if output.suffix in (".png", ".html"):
        output = output.with_suffix("")
    if not output.name:
        raise UserError("--output is the beginning of file names, such as pictures/dog: give one")
    check_place(output, "--output")
    model, text = load_model(args.model, device=choose_device(args.device)), load_text(args.model)
    options = {**saved_options(args.model), "n_best": 1}  # one is looked at
    if args.beam is not None:
        options["beam"] = args.beam
    inspection = inspect(model, text, args.sentence, target=args.target, **options)
    output.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        picture = draw(inspection, output.with_name(output.name + ".png"))
    if any(str(warning.message).startswith("Glyph") for warning in warned):
        print("The picture's font lacks some characters; the page shows all.", file=sys.stderr)
    page = write_page(inspection, output.with_name(output.name + ".html"))
    layers = [
        {
            "attention": layer.kind,
            "layer": layer.layer,
            "branches": layer.weights.shape[0],
            "in_common": _rounded(layer.mean_overlap),
            "weights_cosine": _rounded(layer.weight_similarity),
        }
        for layer in inspection.layers
    ]
    if args.json:
        said = {"translation": inspection.target_text, "png": str(picture), "html": str(page)}
        print_result([{**said, "layers": layers}], as_json=True)
        return
    print(inspection.target_text)
    print_result(layers, as_json=False, title="What the branches have in common")
    print(f"{picture}\n{page}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
