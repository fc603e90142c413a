"""Meanings put into Valdish: the finite verb second in main clauses and last in all others."""

from multibranch.data.builtin import inflection
from multibranch.data.builtin.inflection import CASES, DER
from multibranch.data.builtin.meaning import (
    Adverbial,
    Clause,
    Gap,
    Name,
    Nominal,
    Phrase,
    Predicate,
    Pronoun,
    Sentence,
)

MODALS = {
    "can": "können",
    "must": "müssen",
    "want": "wollen",
    "should": "sollen",
    "may": "dürfen",
}
QUESTIONS = {"where": "wo", "why": "warum", "when": "wann", "what": "was"}
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("in", "das"): "ins",
    ("von", "dem"): "vom",
}


def sentence(meaning: Sentence) -> list[str]:
    """The words and punctuation marks of a sentence."""
    main = meaning.main
    if meaning.question:
        words = _question(main)
    elif meaning.other is None or meaning.joint is None:
        words = verb_second(main)
    elif meaning.other_first:
        words = [meaning.joint[1], *verb_last(meaning.other), ",", *_verb_first(main)]
    elif meaning.subordinate:
        words = [*verb_second(main), ",", meaning.joint[1], *verb_last(meaning.other)]
    else:
        words = [*verb_second(main), ",", meaning.joint[1], *verb_second(meaning.other)]
    return [*words, "?" if meaning.question else "."]


def verb_second(meaning: Clause) -> list[str]:
    """A main clause: one part, the finite verb, everything else."""
    if meaning.front == "time" and meaning.time:
        return [meaning.time[1], *_verb_first(meaning, without="time")]
    if meaning.front == "object":
        if meaning.direct:
            return [*nominal(meaning.direct, "acc"), *_verb_first(meaning, without="direct")]
        assert meaning.indirect is not None
        return [*nominal(meaning.indirect, "dat"), *_verb_first(meaning, without="indirect")]
    return [*nominal(meaning.subject, "nom"), *_verb_first(meaning, without="subject")]


def verb_last(meaning: Clause) -> list[str]:
    """A clause that depends on another one."""
    first, closing = _verbs(meaning, joined=True)
    return [*_middle(meaning), *closing, first, *_complement(meaning)]


def nominal(meaning: Nominal, case: str) -> list[str]:
    """A noun phrase or what stands for one, in a case."""
    if isinstance(meaning, Pronoun):
        key = meaning.gender
        if meaning.plural or meaning.person != 3:
            return [inflection.PRONOUNS[meaning.person, meaning.plural][CASES.index(case)]]
        return [inflection.PRONOUNS[key][CASES.index(case)]]
    if isinstance(meaning, Name):
        return [meaning.valdish]
    if isinstance(meaning, Gap):
        return []
    return _phrase(meaning, case)


def _phrase(meaning: Phrase, case: str) -> list[str]:
    gender = "p" if meaning.plural else meaning.noun.gender
    determiner = meaning.determiner
    if determiner == "a" and meaning.noun.english_plural == "-":
        determiner = ""
    words = [inflection.determiner(determiner, gender=gender, case=case)]
    words += [
        inflection.adjective(adjective.valdish, after=determiner, gender=gender, case=case)
        for adjective in meaning.adjectives
    ]
    noun = inflection.noun(meaning.noun, plural=meaning.plural, case=case)
    words.append(inflection.compound(meaning.modifier, noun) if meaning.modifier else noun)
    words = [word for word in words if word]
    if isinstance(meaning.owner, Name):
        words += ["von", meaning.owner.valdish]
    elif meaning.owner:
        words += nominal(meaning.owner, "gen")
    if meaning.relative:
        words += [",", _relative_pronoun(meaning), *verb_last(meaning.relative), ","]
    return words


def _relative_pronoun(meaning: Phrase) -> str:
    """Der, den, denen, …: gender and number of the noun, case of the gap."""
    clause = meaning.relative
    assert clause is not None
    case = "nom"
    if isinstance(clause.direct, Gap):
        case = "acc"
    elif isinstance(clause.indirect, Gap):
        case = "dat"
    if meaning.plural and case == "dat":
        return "denen"
    return "d" + DER["p" if meaning.plural else meaning.noun.gender][CASES.index(case)]


def _verb_first(meaning: Clause, *, without: str = "") -> list[str]:
    first, closing = _verbs(meaning, joined=False)
    return [first, *_middle(meaning, without=without), *closing, *_complement(meaning)]


def _question(meaning: Clause) -> list[str]:
    if meaning.front == "who":
        return verb_second(meaning)
    opening = [QUESTIONS[meaning.front]] if meaning.front in QUESTIONS else []
    return [*opening, *_verb_first(meaning)]


def _middle(meaning: Clause, *, without: str = "") -> list[str]:
    """What stands between the two places of the verb, pronouns first."""
    direct = meaning.direct if without != "direct" else None
    indirect = meaning.indirect if without != "indirect" else None
    words = nominal(meaning.subject, "nom") if without != "subject" else []
    for thing, case in ((direct, "acc"), (indirect, "dat")):
        words += nominal(thing, case) if isinstance(thing, Pronoun) else []
    words += [meaning.time[1]] if meaning.time and without != "time" else []
    words += [meaning.frequency[1]] if meaning.frequency else []
    if indirect and not isinstance(indirect, Pronoun):
        words += nominal(indirect, "dat")
    merged = meaning.negated and direct is not None and _takes_kein(direct)
    if direct and not isinstance(direct, Pronoun):
        words += nominal(_without_a(direct) if merged else direct, "acc")
    predicate = meaning.predicate
    if predicate and predicate.nominal and meaning.negated and _takes_kein(predicate.nominal):
        words += nominal(_without_a(predicate.nominal), "nom")
        predicate, merged = None, True
    words += ["nicht"] if meaning.negated and not merged else []
    words += [meaning.manner[1]] if meaning.manner else []
    words += _adverbial(meaning.place) if meaning.place else []
    words += _adverbial(meaning.oblique) if meaning.oblique else []
    return words + (_predicate(predicate) if predicate else [])


def _takes_kein(meaning: Nominal) -> bool:
    return isinstance(meaning, Phrase) and meaning.determiner == "a"


def _without_a(meaning: Nominal) -> Nominal:
    assert isinstance(meaning, Phrase)
    return Phrase(**{**vars(meaning), "determiner": "no"})


def _predicate(meaning: Predicate) -> list[str]:
    if meaning.nominal:
        return nominal(meaning.nominal, "nom")
    assert meaning.adjective is not None
    if meaning.than:
        return [inflection.comparative(meaning.adjective), "als", *nominal(meaning.than, "nom")]
    return [meaning.adjective.valdish]


def _adverbial(meaning: Adverbial) -> list[str]:
    first, *others = nominal(meaning.nominal, meaning.preposition.case)
    contracted = CONTRACTIONS.get((meaning.preposition.valdish, first))
    if contracted and not isinstance(meaning.nominal, Pronoun):
        return [contracted, *others]
    return [meaning.preposition.valdish, first, *others]


def _complement(meaning: Clause) -> list[str]:
    if meaning.complement is None or meaning.verb is None:
        return []
    if meaning.verb.frame == "z":
        return [",", *_infinitive(meaning.complement)]
    return [",", "ob" if meaning.verb.frame == "q" else "dass", *verb_last(meaning.complement)]


def _infinitive(meaning: Clause) -> list[str]:
    assert meaning.verb is not None
    words = _middle(meaning, without="subject")
    return [*words, *inflection.infinitive(meaning.verb, zu=True), *_complement(meaning)]


def _verbs(meaning: Clause, *, joined: bool) -> tuple[str, list[str]]:
    """The finite verb, and what closes the clause: particle, participle or infinitive.

    Where the finite verb stands last (``joined``) it keeps its particle.
    """
    verb, tense, subject = meaning.verb, meaning.tense, meaning.subject

    def form(word: str, when: str = "present") -> str:
        return inflection.finite(word, when, person=subject.person, plural=subject.plural)

    if meaning.passive and verb:
        closing = [inflection.participle(verb)]
        if tense in ("present", "past"):
            return form("werden", tense), closing
        return form(MODALS.get(tense, "werden")), [*closing, "werden"]
    if tense == "perfect":
        sein = verb is None or verb.sein
        return form("sein" if sein else "haben"), [
            inflection.participle(verb) if verb else "gewesen"
        ]
    if tense not in ("present", "past"):
        return form(MODALS.get(tense, "werden")), inflection.infinitive(verb) if verb else ["sein"]
    if verb is None:
        return form("sein", tense), []
    first = inflection.finite(verb, tense, person=subject.person, plural=subject.plural)
    if joined:
        return verb.particle + first, []
    return first, [verb.particle] if verb.particle else []
