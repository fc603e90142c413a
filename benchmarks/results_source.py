"""What the sections of docs/results.md say of a record: where, with what and how it was made."""

from pathlib import Path
from typing import Any


def source_of(path: Path, content: dict[str, Any], *more: str) -> str:
    """Where the figures of a section come from."""
    said = [f"Record: [{path.name}](../benchmarks/results/{path.name})."]
    if where := machine_of(content):
        said.append(f"Machine: {where}.")
    text = " ".join([*said, *more])
    return text + (f"\n\n```sh\n{content['command']}\n```" if content.get("command") else "")


def machine_of(content: dict[str, Any]) -> str:
    """Where a record was made, and with what; empty where it does not say."""
    told = content["machine"] if isinstance(content.get("machine"), dict) else content
    where = [str(told[name]) for name in ("device", "machine") if told.get(name)]
    if told.get("cores"):
        where.append(f"{told['cores']} cores")
    if told.get("torch"):
        where.append(f"PyTorch {told['torch']}")
    return ", ".join(where)


def note_of(content: dict[str, Any]) -> str:
    """What a record says of how it came about, as a sentence."""
    note = str(content.get("note", ""))
    return f"{note[0].upper()}{note[1:].rstrip('.')}." if note else ""
