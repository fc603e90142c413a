"""Valdish words in their forms: nouns, articles, adjectives, pronouns and verbs, by rule."""

from multibranch.data.builtin.lexicon import Adjective, Noun, Verb, umlaut

CASES = ("nom", "acc", "dat", "gen")

# Endings in the order nominative, accusative, dative, genitive, by gender or plural.
DER = {
    "m": ("er", "en", "em", "es"),
    "f": ("ie", "ie", "er", "er"),
    "n": ("as", "as", "em", "es"),
    "p": ("ie", "ie", "en", "er"),
}
DIESER = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
EIN = {
    "m": ("", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("", "", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
# Adjectives after der and dieser, after ein, and after nothing that shows the case.
WEAK = {
    "m": ("e", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("e", "e", "en", "en"),
    "p": ("en", "en", "en", "en"),
}
MIXED = WEAK | {"m": ("er", "en", "en", "en"), "n": ("es", "es", "en", "en")}
STRONG = DIESER | {"m": ("er", "en", "em", "en"), "n": ("es", "es", "em", "en")}

# English determiner → Valdish stem, its endings, the endings of adjectives behind it
DETERMINERS = {
    "the": ("d", DER, WEAK),
    "this": ("dies", DIESER, WEAK),
    "every": ("jed", DIESER, WEAK),
    "a": ("ein", EIN, MIXED),
    "no": ("kein", EIN, MIXED),
    "my": ("mein", EIN, MIXED),
    "your": ("dein", EIN, MIXED),
    "his": ("sein", EIN, MIXED),
    "her": ("ihr", EIN, MIXED),
    "our": ("unser", EIN, MIXED),
    "their": ("jer", EIN, MIXED),
    "many": ("viel", DIESER, STRONG),
    "some": ("einig", DIESER, STRONG),
    "two": ("zwei", None, STRONG),
    "three": ("drei", None, STRONG),
    "four": ("vier", None, STRONG),
}

# (person, plural) or gender of the third person → nominative, accusative, dative
PRONOUNS = {
    (1, False): ("ich", "mich", "mir"),
    (2, False): ("du", "dich", "dir"),
    (1, True): ("wir", "uns", "uns"),
    (3, True): ("jene", "jene", "jenen"),
    "m": ("er", "ihn", "ihm"),
    "f": ("sie", "sie", "ihr"),
    "n": ("es", "es", "ihm"),
}

# Forms of I, you, he, we, they: present, past
IRREGULAR = {
    "sein": ("bin bist ist sind sind", "war warst war waren waren"),
    "haben": ("habe hast hat haben haben", "hatte hattest hatte hatten hatten"),
    "werden": ("werde wirst wird werden werden", "wurde wurdest wurde wurden wurden"),
    "wissen": ("weiss weisst weiss wissen wissen", "wusste wusstest wusste wussten wussten"),
    "können": ("kann kannst kann können können", ""),
    "müssen": ("muss musst muss müssen müssen", ""),
    "wollen": ("will willst will wollen wollen", ""),
    "sollen": ("soll sollst soll sollen sollen", ""),
    "dürfen": ("darf darfst darf dürfen dürfen", ""),
}
INSEPARABLE = ("be", "ge", "ver", "er", "zer", "ent")


def noun(word: Noun, *, plural: bool, case: str) -> str:
    """A noun in number and case: Vogel, Vögeln; Student, Studenten; Mann, Mannes."""
    if plural:
        stem = umlaut(word.valdish) if word.plural.startswith("¨") else word.valdish
        form = stem + word.plural.strip("¨-")
        return form + "n" if case == "dat" and not form.endswith(("n", "s")) else form
    if word.weak and case != "nom":
        return word.valdish + word.plural
    if case == "gen" and word.gender != "f":
        return word.valdish + ("es" if word.valdish.endswith(("s", "ch", "d", "nn")) else "s")
    return word.valdish


def compound(first: Noun, second: str) -> str:
    """Two nouns as one word, with the joint that the first one asks for: Gartentür, Küchentisch."""
    joint = ""
    if first.plural == "n" and first.valdish.endswith("e"):
        joint = "n"
    elif first.valdish.endswith(("ung", "heit", "ion")):
        joint = "s"
    return first.valdish + joint + second.lower()


def determiner(word: str, *, gender: str, case: str) -> str:
    """An article or the like; ``gender`` is "p" for the plural."""
    if not word or (word == "a" and gender == "p"):
        return ""
    stem, endings, _ = DETERMINERS[word]
    return stem + endings[gender][CASES.index(case)] if endings else stem


def adjective(stem: str, *, after: str, gender: str, case: str) -> str:
    """An adjective before its noun; ``after`` is the determiner, in English."""
    endings = STRONG if not after or (after == "a" and gender == "p") else DETERMINERS[after][2]
    ending = endings[gender][CASES.index(case)]
    if stem.endswith(("el", "uer")):
        stem = stem[:-2] + stem[-1]
    return stem.removesuffix("e") + ending


def comparative(word: Adjective) -> str:
    """Älter, schöner, dunkler."""
    if word.valdish_comparative:
        return word.valdish_comparative
    stem = word.valdish
    if stem.endswith(("el", "uer")):
        stem = stem[:-2] + stem[-1]
    return stem.removesuffix("e") + "er"


def finite(verb: Verb | str, tense: str, *, person: int, plural: bool) -> str:
    """The present or past form of a verb for a person."""
    infinitive = verb if isinstance(verb, str) else verb.infinitive
    column = person - 1 if not plural else (3 if person == 1 else 4)
    if infinitive in IRREGULAR:
        return IRREGULAR[infinitive][0 if tense == "present" else 1].split()[column]
    assert isinstance(verb, Verb)
    return _present(verb, column) if tense == "present" else _past(verb, column)


def participle(verb: Verb) -> str:
    """Gesehen, aufgemacht, verkauft."""
    if verb.infinitive == "haben":
        return "gehabt"
    if verb.parts:
        return verb.parts[2]
    stem = verb.infinitive.removesuffix("en")
    bare = stem.startswith(INSEPARABLE) or stem.endswith("ier")
    return verb.particle + ("" if bare else "ge") + stem + _link(stem) + "t"


def infinitive(verb: Verb, *, zu: bool = False) -> list[str]:
    """Sehen, aufmachen; with zu: zu sehen, aufzumachen."""
    if not zu:
        return [verb.particle + verb.infinitive]
    if verb.particle:
        return [f"{verb.particle}zu{verb.infinitive}"]
    return ["zu", verb.infinitive]


def _present(verb: Verb, column: int) -> str:
    regular = verb.infinitive.removesuffix("en")
    if column in (0, 3, 4):
        return regular + ("e" if column == 0 else "en")
    stem = verb.parts[0] if verb.parts else regular
    if stem == regular:
        stem += _link(stem)
    if column == 2 or stem.endswith(("s", "z")):
        return stem + "t"
    return stem + "st"


def _past(verb: Verb, column: int) -> str:
    if verb.parts:
        stem = verb.parts[1]
    else:
        regular = verb.infinitive.removesuffix("en")
        stem = regular + _link(regular) + "te"
    if column in (0, 2):
        return stem
    if column == 1:
        return stem + ("e" if stem.endswith(("d", "t", "s")) else "") + "st"
    return stem + ("n" if stem.endswith("e") else "en")


def _link(stem: str) -> str:
    return "e" if stem.endswith(("t", "d")) else ""
