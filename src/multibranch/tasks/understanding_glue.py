"""GLUE for fine-tuning: what each task is scored by, and where its examples are.

A folder of GLUE is its own distribution (MRPC/train.tsv, …), or what `multibranch prepare glue`
made of it (mrpc/train.jsonl, …).
"""

from pathlib import Path

from multibranch.data.glue import TASKS
from multibranch.errors import UserError
from multibranch.tasks.understanding_data import Columns, Corpus

# As GLUE defines them; the first one chooses among epochs.
SCORES = {
    "mrpc": ("accuracy", "f1"),
    "sst2": ("accuracy",),
    "rte": ("accuracy",),
    "cola": ("matthews",),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
}


def glue_corpus(name: str, folder: str | Path) -> Corpus:
    """A task of GLUE in a folder, as GLUE distributes it or prepared."""
    if name not in SCORES:
        raise UserError(f"there is no GLUE task {name!r}; those known are {', '.join(SCORES)}")
    folder, task = Path(folder), TASKS[name]
    two = task.pair is not None
    splits = [split for split, _ in task.splits if not split.startswith("test")]
    if (folder / name / "valid.jsonl").is_file():
        return Corpus(
            files={split: folder / name / f"{split}.jsonl" for split in splits},
            columns=Columns(("text", "pair") if two else ("text",), "label"),
            labels={str(number): label for number, (_, label) in enumerate(task.labels)},
            scores=SCORES[name],
        )
    files = dict(task.splits)
    return Corpus(
        files={split: folder / task.folder / f"{files[split]}.tsv" for split in splits},
        columns=Columns(
            (task.text, task.pair) if task.pair is not None else (task.text,),
            task.label,
            task.columns or None,
        ),
        labels=dict(task.labels),
        scores=SCORES[name],
    )
