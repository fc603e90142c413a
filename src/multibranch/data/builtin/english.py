"""Meanings put into English."""

from multibranch.data.builtin.lexicon import Adjective, Noun, Verb
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

# (person, plural) or gender of the third person → subject, object
PRONOUNS = {
    (1, False): ("I", "me"),
    (2, False): ("you", "you"),
    (1, True): ("we", "us"),
    (3, True): ("they", "them"),
    "m": ("he", "him"),
    "f": ("she", "her"),
    "n": ("it", "it"),
}
PLURALS = {"a": "", "this": "these"}


def sentence(meaning: Sentence) -> list[str]:
    """The words and punctuation marks of a sentence."""
    main = _question(meaning.main) if meaning.question else clause(meaning.main)
    if meaning.other is None or meaning.joint is None:
        words = main
    elif meaning.other_first:
        words = [meaning.joint[0], *clause(meaning.other), ",", *main]
    elif meaning.subordinate:
        words = [*main, meaning.joint[0], *clause(meaning.other)]
    else:
        words = [*main, ",", meaning.joint[0], *clause(meaning.other)]
    return [*words, "?" if meaning.question else "."]


def clause(meaning: Clause) -> list[str]:
    """A clause in the order subject, verb, rest."""
    if meaning.front == "object":
        focus = meaning.direct or meaning.indirect
        assert focus is not None
        return ["it", "is", *nominal(focus), "that", *_body(meaning)]
    if meaning.front == "time" and meaning.time:
        return [meaning.time[0], *_body(meaning)]
    return _body(meaning)


def nominal(meaning: Nominal, *, subject: bool = False) -> list[str]:
    """A noun phrase or what stands for one."""
    if isinstance(meaning, Pronoun):
        return [_pronoun(meaning)[0 if subject else 1]]
    if isinstance(meaning, Name):
        return [meaning.english]
    if isinstance(meaning, Gap):
        return []
    return _phrase(meaning)


def _phrase(meaning: Phrase) -> list[str]:
    noun = plural(meaning.noun) if meaning.plural else meaning.noun.english
    words = [adjective.english for adjective in meaning.adjectives]
    words += [meaning.modifier.english] if meaning.modifier else []
    words.append(noun)
    determiner = meaning.determiner
    if meaning.plural:
        determiner = PLURALS.get(determiner, determiner)
    elif determiner == "a" and meaning.noun.english_plural == "-":
        determiner = ""
    elif determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    words = [determiner, *words] if determiner else words
    if meaning.owner:
        words += ["of", *nominal(meaning.owner)]
    if meaning.relative:
        words += [_relative_pronoun(meaning), *_body(meaning.relative)]
    return words


def _relative_pronoun(meaning: Phrase) -> str:
    if meaning.noun.kind != "P":
        return "which"
    assert meaning.relative is not None
    return "who" if isinstance(meaning.relative.subject, Gap) else "whom"


def plural(noun: Noun) -> str:
    """The plural by rule, unless the word list names it."""
    if noun.english_plural and noun.english_plural != "-":
        return noun.english_plural
    return _with_s(noun.english)


def comparative(adjective: Adjective) -> list[str]:
    """Older, happier, more beautiful."""
    word = adjective.english
    if adjective.english_comparative == "more":
        return ["more", word]
    if adjective.english_comparative:
        return [adjective.english_comparative]
    if word.endswith("y"):
        return [word[:-1] + "ier"]
    if word in ("big", "red", "hot", "sad", "thin"):
        return [word + word[-1] + "er"]
    return [word.removesuffix("e") + "er"]


def _body(meaning: Clause) -> list[str]:
    words = nominal(meaning.subject, subject=True)
    frequency = [meaning.frequency[0]] if meaning.frequency else []
    if _needs_do(meaning) and not meaning.negated:
        words += [*frequency, *_chain(meaning)]
    else:
        first, *others = _with_auxiliary(meaning)
        if meaning.negated:
            words += ["cannot"] if first == "can" else [first, "not"]
        else:
            words.append(first)
        words += [*frequency, *others]
    return words + _rest(meaning)


def _question(meaning: Clause) -> list[str]:
    """The finite verb before the subject, after the question word if there is one."""
    if meaning.front == "who":
        return _body(meaning)
    first, *others = _with_auxiliary(meaning)
    words = [] if meaning.front == "subject" else [meaning.front]
    frequency = [meaning.frequency[0]] if meaning.frequency else []
    words += [first, *nominal(meaning.subject, subject=True), *frequency, *others]
    return words + _rest(meaning)


def _rest(meaning: Clause) -> list[str]:
    """Everything behind the verb."""
    words = (
        [meaning.verb.english_particle] if meaning.verb and meaning.verb.english_particle else []
    )
    if meaning.front != "object":
        words += _objects(meaning)
    elif meaning.direct and meaning.indirect:
        words += ["to", *nominal(meaning.indirect)]
    if meaning.predicate:
        words += _predicate(meaning.predicate)
    if meaning.oblique:
        words += _adverbial(meaning.oblique)
    words += [meaning.manner[0]] if meaning.manner else []
    words += _adverbial(meaning.place) if meaning.place else []
    words += [meaning.time[0]] if meaning.time and meaning.front != "time" else []
    if meaning.complement and meaning.verb:
        if meaning.verb.frame == "z":
            words += ["to", *_infinitive(meaning.complement)]
        else:
            words += ["whether" if meaning.verb.frame == "q" else "that"]
            words += clause(meaning.complement)
    return words


def _objects(meaning: Clause) -> list[str]:
    direct = nominal(meaning.direct) if meaning.direct else []
    indirect = nominal(meaning.indirect) if meaning.indirect else []
    if not (direct and indirect):
        return indirect + direct
    assert meaning.indirect is not None
    heavy = isinstance(meaning.indirect, Phrase) and (
        meaning.indirect.adjectives or meaning.indirect.relative or meaning.indirect.owner
    )
    if heavy or isinstance(meaning.direct, Pronoun):
        return [*direct, "to", *indirect]
    return indirect + direct


def _predicate(meaning: Predicate) -> list[str]:
    if meaning.nominal:
        return nominal(meaning.nominal)
    assert meaning.adjective is not None
    if meaning.than:
        return [*comparative(meaning.adjective), "than", *nominal(meaning.than)]
    return [meaning.adjective.english]


def _adverbial(meaning: Adverbial) -> list[str]:
    return [meaning.preposition.english, *nominal(meaning.nominal)]


def _infinitive(meaning: Clause) -> list[str]:
    assert meaning.verb is not None
    return [meaning.verb.english[0], *_rest(meaning)]


def _chain(meaning: Clause) -> list[str]:
    """The verbs from the finite one to the main one."""
    singular = meaning.subject.person == 3 and not meaning.subject.plural
    if meaning.tense == "perfect":
        return ["has" if singular else "have", _participle(meaning.verb)]
    if meaning.tense == "future":
        return ["will", *_bare(meaning)]
    if meaning.tense == "want":
        return ["wants" if singular else "want", "to", *_bare(meaning)]
    if meaning.tense not in ("present", "past"):
        return [meaning.tense, *_bare(meaning)]
    past = meaning.tense == "past"
    if meaning.verb is None or meaning.passive:
        chain = [_be(meaning.subject, past)]
        return chain + ([_participle(meaning.verb)] if meaning.passive else [])
    if past:
        return [meaning.verb.english[1]]
    return [third_person(meaning.verb) if singular else meaning.verb.english[0]]


def _needs_do(meaning: Clause) -> bool:
    """Whether the finite verb is one that neither "not" nor the subject may follow."""
    simple = meaning.tense in ("present", "past") and meaning.verb is not None
    return meaning.tense == "want" or (simple and not meaning.passive)


def _with_auxiliary(meaning: Clause) -> list[str]:
    """The verbs again, with "do" in front where negation and questions ask for it."""
    chain = _chain(meaning)
    if not _needs_do(meaning):
        return chain
    singular = meaning.subject.person == 3 and not meaning.subject.plural
    if meaning.tense == "past":
        auxiliary = "did"
    else:
        auxiliary = "does" if singular else "do"
    base = "want" if meaning.tense == "want" else meaning.verb.english[0] if meaning.verb else "be"
    return [auxiliary, base, *chain[1:]]


def _bare(meaning: Clause) -> list[str]:
    if meaning.passive:
        return ["be", _participle(meaning.verb)]
    return [meaning.verb.english[0] if meaning.verb else "be"]


def _participle(verb: Verb | None) -> str:
    return verb.english[2] if verb else "been"


def _be(subject: Nominal, past: bool) -> str:
    if subject.plural or subject.person == 2:
        return "were" if past else "are"
    if past:
        return "was"
    return "am" if subject.person == 1 else "is"


def third_person(verb: Verb) -> str:
    """He sees, carries, watches, has."""
    return "has" if verb.english[0] == "have" else _with_s(verb.english[0])


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "sh", "ch", "o")):
        return word + "es"
    return word + "s"


def _pronoun(meaning: Pronoun) -> tuple[str, str]:
    if meaning.plural or meaning.person != 3:
        return PRONOUNS[meaning.person, meaning.plural]
    if meaning.noun and meaning.noun.kind != "P":
        return PRONOUNS["n"]
    return PRONOUNS[meaning.gender]
