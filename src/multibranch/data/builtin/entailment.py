"""The built-in entailment corpus: two English sentences, and whether the first implies the second.

The second sentence is made from the first one's meaning by a step of logic: leaving something out
of what happened keeps it true, adding something leaves it open, denying it contradicts; and under
a negation leaving out and adding change places. Words alone do not give the answer away: every
step is taken with and without a negation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from multibranch.data.builtin import english
from multibranch.data.builtin import meaning as m
from multibranch.data.builtin.author import BY, Author
from multibranch.data.builtin.chance import Chance
from multibranch.data.builtin.fitting import times
from multibranch.data.builtin.lexicon import ADJECTIVES, MANNERS, Adjective, Noun
from multibranch.data.builtin.translation import LONGEST, spell

ENTAILMENT, CONTRADICTION, NEUTRAL = LABELS = ("entailment", "contradiction", "neutral")

ANTONYMS = (
    ("old", "young"),
    ("old", "new"),
    ("big", "small"),
    ("rich", "poor"),
    ("happy", "sad"),
    ("cold", "warm"),
    ("heavy", "light"),
    ("expensive", "cheap"),
    ("hard", "easy"),
    ("dark", "light"),
    ("clean", "dirty"),
)
SUMMARIES = {
    kind: Noun(word, plural, word, "n", "-", False, kind, False)
    for kind, word, plural in (
        ("P", "person", "people"),
        ("A", "animal", "animals"),
        ("V", "vehicle", "vehicles"),
        ("C", "garment", "garments"),
        ("X", "text", "texts"),
    )
}
INDEFINITE = ("a", "every", "many", "some")
PARTS = ("time", "manner", "place")

Step = Callable[["Maker", m.Clause], m.Clause | None]


@dataclass(frozen=True)
class Maker:
    """What the steps draw on: a stream of choices, and an author for new parts."""

    chance: Chance
    author: Author


def pairs(seed: int) -> Iterator[tuple[str, str]]:
    """The same as (premise and hypothesis with a tab between, label)."""
    return ((f"{premise}\t{hypothesis}", label) for premise, hypothesis, label in triples(seed))


def triples(seed: int) -> Iterator[tuple[str, str, str]]:
    """An endless stream of (premise, hypothesis, label)."""
    chance = Chance("entailment", seed)
    maker = Maker(chance, Author(Chance("entailment", "author", seed)))
    while True:
        label = chance.pick(LABELS)
        made = None
        while made is None:
            made = _texts(_hypothesis(maker, _premise(maker), label))
        yield *made, label


def _texts(clauses: tuple[m.Clause, m.Clause] | None) -> tuple[str, str] | None:
    """Both sentences, unless there is no second one or they are the same or too long."""
    if clauses is None:
        return None
    first, second = (spell(english.sentence(m.Sentence(clause))) for clause in clauses)
    if first == second or max(first.count(" "), second.count(" ")) >= LONGEST:
        return None
    return first, second


def _premise(maker: Maker) -> m.Clause:
    """A clause about someone definite, so that a second one can be about the same."""
    clause = maker.author.statement(compare=maker.chance.happens(0.2))
    while clause.complement or clause.passive or (clause.predicate and clause.predicate.nominal):
        clause = maker.author.statement()
    subject = _definite(clause.subject)
    if clause.predicate and clause.predicate.than:
        than = _definite(clause.predicate.than)
        predicate = replace(clause.predicate, than=than)
        return replace(clause, subject=subject, predicate=predicate, negated=False)
    return replace(clause, subject=subject, frequency=None, negated=maker.chance.happens(0.3))


def _definite(thing: m.Nominal) -> m.Nominal:
    if isinstance(thing, m.Phrase) and thing.determiner in INDEFINITE:
        return replace(thing, determiner="the")
    return thing


def _hypothesis(maker: Maker, premise: m.Clause, label: str) -> tuple[m.Clause, m.Clause] | None:
    """The premise, which a step may rephrase, and a hypothesis of the given label."""
    if premise.predicate and premise.predicate.than:
        other = _compared(maker, premise, label)
        return None if other is None else (premise, other)
    narrower, wider = (_leave_out, _add) if premise.negated else (_add, _leave_out)
    if label == NEUTRAL:
        steps: tuple[Step, ...] = (narrower, _exchange_object, _exchange_subject)
    else:
        steps = (wider,) if premise.negated else (wider, _summarise, _turn_passive)
    other = maker.chance.pick(steps)(maker, premise)
    if label == NEUTRAL and not premise.negated and maker.chance.happens(0.2):
        summary = _summarise(maker, premise)
        return None if summary is None else (summary, premise)
    if other is not None and label == CONTRADICTION:
        opposite = _antonym(maker, other)
        if opposite and not other.negated and maker.chance.happens(0.6):
            return premise, opposite
        other = replace(other, negated=not other.negated)
    if other is not None and label == NEUTRAL and maker.chance.happens(0.3):
        other = replace(other, negated=not other.negated)
    return None if other is None else (premise, other)


def _with(clause: m.Clause, part: str, value: Any) -> m.Clause:
    return replace(clause, **{part: value})


def _described(thing: m.Nominal | None) -> bool:
    """Whether a relative clause ends the phrase, to which an addition would seem to belong."""
    return isinstance(thing, m.Phrase) and (thing.relative is not None or _described(thing.owner))


def _leave_out(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """Without one of its circumstances, or without what describes someone in it."""
    choices = [_with(clause, part, None) for part in PARTS if getattr(clause, part)]
    for role in ("subject", "direct", "indirect"):
        phrase = getattr(clause, role)
        if not isinstance(phrase, m.Phrase) or (clause.negated and role == "subject"):
            continue
        bare = replace(phrase, adjectives=(), modifier=None, relative=None, owner=None)
        if bare != phrase and phrase.determiner != "every":
            choices.append(_with(clause, role, bare))
    return maker.chance.pick(choices) if choices else None


def _add(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """With one circumstance more."""
    oblique = clause.oblique.nominal if clause.oblique else None
    if clause.verb is None or any(map(_described, (clause.direct, clause.indirect, oblique))):
        return None
    part = maker.chance.pick([part for part in PARTS if not getattr(clause, part)] or ["none"])
    if part == "time":
        tense = clause.tense if clause.tense in ("present", "past", "future") else "future"
        if clause.tense == "perfect":
            return None
        return replace(clause, time=maker.chance.pick(times(tense)))
    if part == "manner" and "P" in clause.verb.subjects:
        return replace(clause, manner=maker.chance.pick(MANNERS))
    if part == "place" and clause.verb.frame in "tid":
        return replace(clause, place=maker.author.place())
    return None


def _summarise(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """A dog is an animal: someone or something by a more general word."""
    role = maker.chance.pick(("subject", "direct"))
    phrase = getattr(clause, role)
    if not isinstance(phrase, m.Phrase) or phrase.noun.kind not in SUMMARIES or phrase.relative:
        return None
    if phrase.determiner not in ("the", "a", "this", "two"):
        return None
    summary = replace(phrase, noun=SUMMARIES[phrase.noun.kind], modifier=None)
    return _with(clause, role, summary)


def _turn_passive(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """The same event told from the other side."""
    if not isinstance(clause.direct, m.Phrase) or clause.tense not in ("present", "past"):
        return None
    if clause.verb is None or clause.verb.frame != "t" or clause.verb.english[0] == "have":
        return None
    agent = m.Adverbial(BY, clause.subject)
    return replace(clause, subject=clause.direct, direct=None, oblique=agent, passive=True)


def _exchange_object(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """The same done to something else."""
    if not isinstance(clause.direct, m.Phrase):
        return None
    other = maker.author.phrase(clause.direct.noun.kind)
    if other.noun == clause.direct.noun:
        return None
    return replace(clause, direct=replace(other, determiner="the"))


def _exchange_subject(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """The same done by someone else."""
    if not isinstance(clause.subject, m.Phrase):
        return None
    other = maker.author.phrase(clause.subject.noun.kind)
    if other.noun == clause.subject.noun:
        return None
    return replace(clause, subject=replace(other, determiner="the", plural=clause.subject.plural))


def _antonym(maker: Maker, clause: m.Clause) -> m.Clause | None:
    """What someone is, turned into its opposite."""
    if clause.predicate is None or clause.predicate.adjective is None:
        return None
    opposite = _opposite(maker, clause.subject, clause.predicate.adjective)
    if opposite is None:
        return None
    return replace(clause, predicate=replace(clause.predicate, adjective=opposite))


def _opposite(maker: Maker, subject: m.Nominal, adjective: Adjective) -> Adjective | None:
    kind = subject.noun.kind if isinstance(subject, m.Phrase) else "P"
    words = {b for a, b in ANTONYMS if a == adjective.english}
    words |= {a for a, b in ANTONYMS if b == adjective.english}
    choices = [a for a in ADJECTIVES if a.english in words and kind in a.kinds]
    return maker.chance.pick(choices) if choices else None


def _compared(maker: Maker, premise: m.Clause, label: str) -> m.Clause | None:
    """Older one way is younger the other way, and not older that way."""
    predicate = premise.predicate
    assert predicate is not None and predicate.adjective is not None and predicate.than is not None
    if isinstance(premise.subject, m.Phrase) and premise.subject.relative:
        return None
    turned = replace(
        premise, subject=predicate.than, predicate=replace(predicate, than=premise.subject)
    )
    opposite = _opposite(maker, premise.subject, predicate.adjective)
    if label == NEUTRAL:
        return replace(premise, predicate=replace(predicate, than=None))
    if opposite is None:
        return turned if label == CONTRADICTION else None
    upside_down = replace(predicate, adjective=opposite)
    if label == CONTRADICTION:
        return maker.chance.pick((turned, replace(premise, predicate=upside_down)))
    assert turned.predicate is not None
    return replace(turned, predicate=replace(turned.predicate, adjective=opposite))
