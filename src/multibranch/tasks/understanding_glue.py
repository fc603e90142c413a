"""GLUE's tasks as data: their files, columns, labels and scores, as GLUE distributes them."""

from dataclasses import dataclass

from multibranch.errors import UserError


@dataclass(frozen=True)
class GlueTask:
    """One task of GLUE.

    `text` names the one or two columns of text, `labels` what stands in the label column and what
    it means. Most files have a header; `header` stands in for one that is missing. `splits` says
    which file is which. The first of `scores` is the one that chooses among epochs.
    """

    folder: str
    text: tuple[str, ...]
    label: str
    labels: dict[str, str]
    scores: tuple[str, ...]
    splits: dict[str, str]
    counts: dict[str, int]  # the official ones
    header: tuple[str, ...] | None = None


_TWO = {"train": "train.tsv", "valid": "dev.tsv"}
_ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}

GLUE = {
    "mrpc": GlueTask(
        folder="MRPC",
        text=("#1 String", "#2 String"),
        label="Quality",
        labels={"0": "not_equivalent", "1": "equivalent"},
        scores=("accuracy", "f1"),
        splits=_TWO,
        counts={"train": 3668, "valid": 408},
    ),
    "sst2": GlueTask(
        folder="SST-2",
        text=("sentence",),
        label="label",
        labels={"0": "negative", "1": "positive"},
        scores=("accuracy",),
        splits=_TWO,
        counts={"train": 67349, "valid": 872},
    ),
    "rte": GlueTask(
        folder="RTE",
        text=("sentence1", "sentence2"),
        label="label",
        labels=_ENTAILMENT,
        scores=("accuracy",),
        splits=_TWO,
        counts={"train": 2490, "valid": 277},
    ),
    "cola": GlueTask(
        folder="CoLA",
        text=("sentence",),
        label="label",
        labels={"0": "unacceptable", "1": "acceptable"},
        scores=("matthews",),
        splits=_TWO,
        counts={"train": 8551, "valid": 1043},
        header=("source", "label", "mark", "sentence"),
    ),
    "mnli": GlueTask(
        folder="MNLI",
        text=("sentence1", "sentence2"),
        label="gold_label",
        labels={name: name for name in ("entailment", "neutral", "contradiction")},
        scores=("accuracy",),
        splits={
            "train": "train.tsv",
            "valid": "dev_matched.tsv",
            "valid-mismatched": "dev_mismatched.tsv",
        },
        counts={"train": 392702, "valid": 9815, "valid-mismatched": 9832},
    ),
    "qnli": GlueTask(
        folder="QNLI",
        text=("question", "sentence"),
        label="label",
        labels=_ENTAILMENT,
        scores=("accuracy",),
        splits=_TWO,
        counts={"train": 104743, "valid": 5463},
    ),
}


def glue_task(name: str) -> GlueTask:
    """A task by its name in configurations."""
    if name not in GLUE:
        raise UserError(f"there is no GLUE task {name!r}; those known are {', '.join(GLUE)}")
    return GLUE[name]
