"""What a sentence of the translation corpus says, before it is put into either language.

The structures are those that both languages share; word order, agreement, case and endings are the
business of ``english`` and ``valdish``.
"""

from dataclasses import dataclass

from multibranch.data.builtin.lexicon import Adjective, Noun, Verb


@dataclass(frozen=True)
class Pronoun:
    """I, you, he, …; ``noun`` is what it stands for where that was said before."""

    person: int
    plural: bool = False
    gender: str = "m"
    noun: Noun | None = None


@dataclass(frozen=True)
class Name:
    """A person's name, or "who"."""

    english: str
    valdish: str
    gender: str
    person: int = 3
    plural: bool = False


@dataclass(frozen=True)
class Gap:
    """The place in a relative clause of the noun that the clause describes."""

    noun: Noun
    plural: bool
    person: int = 3

    @property
    def gender(self) -> str:
        return self.noun.gender


@dataclass(frozen=True)
class Phrase:
    """A noun with what goes along with it. ``modifier`` makes a compound of it."""

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    modifier: Noun | None = None
    owner: "Nominal | None" = None
    relative: "Clause | None" = None
    person: int = 3

    @property
    def gender(self) -> str:
        return self.noun.gender


Nominal = Pronoun | Name | Gap | Phrase


@dataclass(frozen=True)
class Preposition:
    """A preposition in both languages, and the case it takes in Valdish."""

    english: str
    valdish: str
    case: str


@dataclass(frozen=True)
class Adverbial:
    """A preposition with its noun, or a city."""

    preposition: Preposition
    nominal: Nominal


@dataclass(frozen=True)
class Predicate:
    """What someone or something is: an adjective, more of it than another, or a noun."""

    adjective: Adjective | None = None
    than: Nominal | None = None
    nominal: Nominal | None = None


@dataclass(frozen=True)
class Clause:
    """A verb (none: to be) with all that depends on it.

    ``front`` names the part that stands first: "subject", "time", "object" (a cleft in English), or
    a question word.
    """

    subject: Nominal
    verb: Verb | None = None
    tense: str = "present"  # present, past, perfect, future, or the English modal
    negated: bool = False
    passive: bool = False
    indirect: Nominal | None = None
    direct: Nominal | None = None
    oblique: Adverbial | None = None
    predicate: Predicate | None = None
    place: Adverbial | None = None
    time: tuple[str, str] | None = None  # (English, Valdish)
    frequency: tuple[str, str] | None = None
    manner: tuple[str, str] | None = None
    complement: "Clause | None" = None
    front: str = "subject"


@dataclass(frozen=True)
class Sentence:
    """A main clause, or a question, alone or joined with another clause."""

    main: Clause
    question: bool = False
    joint: tuple[str, str] | None = None  # the conjunction in English and Valdish
    other: Clause | None = None
    subordinate: bool = False  # the conjunction puts the verb of ``other`` last
    other_first: bool = False


# (English, Valdish, the tenses it goes with)
TIMES = (
    ("today", "heute", "present past future"),
    ("yesterday", "gestern", "past"),
    ("now", "jetzt", "present"),
    ("tomorrow", "morgen", "future"),
    ("every day", "jeden Tag", "present past"),
    ("in the morning", "am Morgen", "present past future"),
    ("in the evening", "am Abend", "present past future"),
    ("last year", "letztes Jahr", "past"),
    ("soon", "bald", "future"),
    ("on Sunday", "am Sonntag", "present past future"),
    ("at night", "in der Nacht", "present past"),
    ("in winter", "im Winter", "present past"),
)

FREQUENCIES = (
    ("often", "oft"),
    ("always", "immer"),
    ("never", "nie"),
    ("sometimes", "manchmal"),
    ("seldom", "selten"),
)

SUBORDINATORS = (
    ("because", "weil"),
    ("when", "wenn"),
    ("although", "obwohl"),
    ("if", "falls"),
    ("while", "während"),
    ("before", "bevor"),
)

COORDINATORS = (("and", "und"), ("but", "aber"), ("or", "oder"))

MODALS = ("can", "must", "want", "should", "may")
PERSONAL = (
    Pronoun(3, gender="m"),
    Pronoun(1),
    Pronoun(3, gender="f"),
    Pronoun(3, plural=True),
    Pronoun(1, plural=True),
    Pronoun(2),
)

WHERE = {
    "L": (("in", "in"), ("behind", "hinter"), ("beside", "neben"), ("in front of", "vor")),
    "T": (("on", "auf"), ("under", "unter"), ("beside", "neben"), ("behind", "hinter")),
    "V": (("in", "in"), ("beside", "neben"), ("behind", "hinter")),
    "S": (("on", "an"),),
}
TOWARDS = {"L": (("into", "in", "acc"), ("to", "zu", "dat"), ("through", "durch", "acc"))}
WITH = (("with", "mit", "dat"), ("for", "für", "acc"), ("without", "ohne", "acc"))
