"""What requests and answers hold: the shapes that the OpenAPI description shows."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST_BRANCHES = 64
Text = Annotated[str, StringConstraints(max_length=10_000_000)]
Branches = Annotated[
    Annotated[
        list[Annotated[int, Field(ge=1, le=MOST_BRANCHES)]],
        Field(min_length=1, max_length=MOST_BRANCHES),
    ]
    | None,
    Field(
        description="Decode with these branches of every attention layer only, counted from 1. "
        "Unless given, with all.",
        examples=[[1, 3]],
    ),
]


class _Body(BaseModel):
    # A misspelt option must not pass for one that was obeyed.
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchBody(_Body):
    """How to search. What is not given is what the model remembers."""

    n_best: int = Field(1, ge=1, description="Translations to give, at most `beam`.")
    beam: int | None = Field(None, ge=1, description="Hypotheses kept alive; 1 is greedy search.")
    length_penalty: float | None = Field(
        None, ge=-10, le=10, description="α of score = log-probability / length^α."
    )
    branches: Branches = None


class TranslateBody(SearchBody):
    """One text or many, each translated as one sentence."""

    text: Text | Annotated[list[Text], Field(min_length=1)] = Field(
        description="What to translate: a text, or a list of them.",
        examples=["Ein Hund läuft über die Wiese.", ["Guten Morgen!", "Wie geht es dir?"]],
    )


class DocumentBody(SearchBody):
    """A document of any number of sentences."""

    text: Text = Field(
        description="Paragraphs are lines; each is split into sentences.",
        examples=["Ein Hund läuft. Die Katze schläft.\nMorgen regnet es."],
    )


class InspectBody(_Body):
    """A text whose attention is asked for."""

    text: Text = Field(description="What to translate.", examples=["Ein Hund läuft."])
    target: Text | None = Field(None, description="Its translation, instead of the model's own.")
    beam: int | None = Field(None, ge=1, description="Hypotheses kept alive.")
    length_penalty: float | None = Field(None, ge=-10, le=10, description="α, as in /translate.")
    branches: Branches = None
    kind: Literal["cross", "encoder", "decoder"] = Field(
        "cross", description="Target to source, or either to itself."
    )


class HypothesisAnswer(BaseModel):
    """One translation."""

    text: str
    score: float = Field(description="What translations are ranked by: log-probability / length^α.")
    log_probability: float


class TranslationAnswer(BaseModel):
    """The translations of one text, the best first and no text twice."""

    text: str = Field(description="The best translation; empty for a blank text.")
    hypotheses: list[HypothesisAnswer]


class TranslateAnswer(BaseModel):
    """The translations of every text, in order."""

    translations: list[TranslationAnswer]
    seconds: float = Field(description="What answering took, waiting included.")


class LayerAnswer(BaseModel):
    """One attention layer."""

    layer: int = Field(description="The number of its block, from 1.")
    branches: list[list[list[float]]] = Field(
        description="For every branch, for every row token, its attention to the column tokens, "
        "heads averaged; a row sums to 1."
    )
    in_common: float | None = Field(
        description="The share of their attention that two branches put on the same tokens, on "
        "average; null with one branch."
    )


class InspectAnswer(BaseModel):
    """A text, its translation, and what every branch looked at."""

    source: list[str] = Field(description="The tokens that the encoder reads.")
    target: list[str] = Field(description="The tokens that the decoder writes.")
    text: str = Field(description="The translation.")
    kind: str
    rows: list[str] = Field(description="The tokens that look.")
    columns: list[str] = Field(description="The tokens that are looked at.")
    branches: list[int] = Field(description="The numbers of the branches, from 1.")
    layers: list[LayerAnswer]


class SentenceLine(BaseModel):
    """One line of a streamed document: a sentence with its translations, or why there are none."""

    paragraph: int = Field(description="The number of its paragraph, from 1.")
    sentence: int = Field(description="Its number in the document, from 1.")
    part: int | None = Field(
        None, description="Where a sentence was too long for the model: which part of it this is."
    )
    source: str
    text: str | None = Field(None, description="The best translation.")
    hypotheses: list[HypothesisAnswer] | None = None
    error: str | None = None


class EndLine(BaseModel):
    """The last line of a streamed document: without it, the document is incomplete."""

    done: bool = Field(description="Whether every sentence was answered.")
    lines: int = Field(description="How many lines came before this one.")
    failed: int = Field(description="How many of them hold an error.")
    seconds: float
    error: str | None = None


class HealthAnswer(BaseModel):
    """The service is up."""

    status: Literal["ok"]
    waiting: int = Field(description="Texts that wait or are being translated.")
    seconds_up: float


class ModelAnswer(BaseModel):
    """What is served, and what may be asked of it."""

    engine: Literal["torch", "ctranslate2"]
    precision: str = Field(
        description="What it computes in, such as float32 or int8; with ctranslate2 its compute "
        "type, such as int8_float32."
    )
    device: str = Field(description="Where it computes: cpu or cuda.")
    source_language: str
    target_language: str
    branches: int = Field(
        description="Branches that can be chosen, numbered from 1: those that every layer has; 0 "
        "where they are folded."
    )
    layers: list[int] = Field(
        description="How many branches each layer has, the encoder's first; none where they are "
        "folded."
    )
    can_inspect: bool
    beam: int = Field(description="The beam that is used unless another is asked for.")
    length_penalty: float
    limits: dict[str, int | float]
    version: str


class Problem(BaseModel):
    """Why a request was not answered: a sentence."""

    error: str


def problem(status: int, what: str, **headers: Any) -> dict[int | str, dict[str, Any]]:
    """A status for the OpenAPI description."""
    described = {"model": Problem, "description": what}
    if headers:
        described["headers"] = {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return {status: described}
