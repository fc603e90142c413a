"""The scores of a code model as a table."""

from typing import Any

from multibranch.cli import streams
from multibranch.cli.output import print_signatures, scored
from multibranch.errors import counted

_NAMES = {
    "sentence_bleu": "sentence BLEU, mean",
    "bleu": "corpus BLEU",
    "exact_match": "exact match",
    "pov": "PoV: outputs that parse",
    "reference_pov": "PoV of the references",
    "unknown": "tokens where <unk> was best",
    "outputs_with_unknown": "outputs with such a token",
}


def show_code_scores(result: dict[str, Any]) -> None:
    """Print what `tasks.code.evaluate_code` found; all numbers but BLEU are percentages."""
    from rich.table import Table

    console = streams.console()
    outputs = scored(result, "output")
    console.print(f"{result['model']} ({result['language']}) on {outputs}", soft_wrap=True)
    table = Table()
    table.add_column("metric")
    plain = result.get("without_valid_only")
    table.add_column("score" if plain is None else "valid only", justify="right")
    if plain is not None:
        table.add_column("best scored", justify="right")
    found = {name: label for name, label in _NAMES.items() if name in result}
    for name, label in found.items():
        cells = [label, f"{result[name]:.2f}"]
        if plain is not None:
            cells.append(f"{plain[name]:.2f}")
        table.add_row(*cells)
    console.print(table)
    print_signatures({label: result["signatures"][name] for name, label in found.items()})
    if plain is not None:
        console.print(f"--valid-only changed {counted(plain['changed_outputs'], 'output')}")
