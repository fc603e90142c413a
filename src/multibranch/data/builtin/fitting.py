"""Which words of the translation corpus fit together."""

from functools import cache

from multibranch.data.builtin import meaning as m
from multibranch.data.builtin.lexicon import ADJECTIVES, NOUNS, VERBS, Adjective, Noun, Verb


def shows_case(subject: m.Nominal, thing: m.Phrase) -> bool:
    """Whether the forms tell the subject from the object when their order does not."""
    if subject.plural != thing.plural:
        return True
    nominals = [thing] if isinstance(subject, m.Name) else [subject, thing]
    return any(
        not nominal.plural
        and nominal.gender == "m"
        and not (isinstance(nominal, m.Phrase) and nominal.determiner == "a" and _is_mass(nominal))
        for nominal in nominals
    )


def _is_mass(phrase: m.Phrase) -> bool:
    return phrase.noun.english_plural == "-"


@cache
def nouns(kinds: str, *, plain: bool = False) -> tuple[Noun, ...]:
    """The nouns of these kinds; where many kinds are wanted, none that could be mistaken."""
    vague = plain or len(kinds) > 2
    return tuple(n for n in NOUNS if n.kind in kinds and not (vague and n.ambiguous))


@cache
def adjectives(kind: str) -> tuple[Adjective, ...]:
    """The adjectives that suit a kind."""
    return tuple(a for a in ADJECTIVES if kind in a.kinds)


@cache
def times(tense: str) -> tuple[tuple[str, str], ...]:
    """The times that go with a tense, in English and Valdish."""
    return tuple((e, v) for e, v, tenses in m.TIMES if tense in tenses.split())


@cache
def verbs(frames: str, subject: str = "", object: str = "") -> tuple[Verb, ...]:
    """The verbs of these frames that subjects and objects of the given kinds can have."""
    return tuple(
        verb
        for verb in VERBS
        if verb.frame in frames and subject in verb.subjects and object in verb.objects
    )
