"""The author of the translation corpus: draws meanings that make some sense.

Verbs choose subjects and objects of kinds that suit them, tenses choose their adverbs, and what a
sentence may still carry shrinks with every part it has, so that it ends up between a handful and
some two dozen words.
"""

from dataclasses import replace

from multibranch.data.builtin import meaning as m
from multibranch.data.builtin.chance import Chance
from multibranch.data.builtin.fitting import adjectives, nouns, shows_case, times, verbs
from multibranch.data.builtin.lexicon import CITIES, MANNERS, NAMES, NOUNS, Adjective, Noun, Verb

DETERMINERS = {
    "the": 50.0,
    "a": 22.0,
    "my": 4.0,
    "his": 4.0,
    "this": 4.0,
    "her": 3.0,
    "our": 2.0,
    "their": 2.0,
    "your": 2.0,
    "every": 2.0,
    "two": 2.0,
    "many": 2.0,
    "some": 1.0,
    "three": 1.0,
    "four": 1.0,
}
ALWAYS_PLURAL = ("two", "three", "four", "many", "some")
PAST = {"past": 1.0}
NOT_PAST = {"present": 60.0, "perfect": 12.0, "future": 8.0, "modal": 12.0}
TENSES = {"present": 40.0, "past": 30.0, "perfect": 12.0, "future": 8.0, "modal": 10.0}
FRAMES = {
    "t": 42.0,
    "i": 10.0,
    "p": 8.0,
    "m": 8.0,
    "d": 7.0,
    "b": 8.0,
    "c": 7.0,
    "q": 2.0,
    "z": 5.0,
}
SHAPES = {
    "plain": 48.0,
    "subordinate": 16.0,
    "coordinate": 12.0,
    "question": 12.0,
    "front": 7.0,
    "compare": 5.0,
}
PLACES = {"L": 10.0, "T": 3.0, "V": 1.0, "S": 2.0, "city": 2.0}
BY = m.Preposition("by", "von", "dat")
OF_SHORE = tuple(noun for noun in NOUNS if noun.kind == "W")


class Author:
    """Draws one meaning after the other from a stream of choices."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._room = 0.0
        self._tenses = TENSES

    def sentence(self) -> m.Sentence:
        """One sentence."""
        self._start()
        shape = self._chance.among(SHAPES)
        if shape == "question":
            return self._question()
        if shape == "front":
            return self._fronted()
        if shape == "compare":
            return m.Sentence(self._description(compare=True))
        main = self._statement()
        if shape == "plain" or main.complement:
            return m.Sentence(main)
        self._room = 0.4
        self._tenses = PAST if main.tense == "past" else NOT_PAST
        other = self._statement(about=main.subject)
        if shape == "coordinate":
            return m.Sentence(main, joint=self._chance.early(m.COORDINATORS), other=other)
        first = self._chance.happens(0.4)
        return m.Sentence(
            replace(main, front="subject") if first else main,
            joint=self._chance.early(m.SUBORDINATORS),
            other=replace(other, front="subject"),
            subordinate=True,
            other_first=first,
        )

    def statement(self, *, compare: bool = False) -> m.Clause:
        """One main clause that stands alone; with ``compare`` one that compares two things."""
        self._start()
        return self._description(compare=True) if compare else self._statement()

    def phrase(self, kinds: str) -> m.Phrase:
        """A noun of one of these kinds with an article and no more."""
        self._start(room=0.0)
        return self._phrase(kinds)

    def place(self) -> m.Adverbial:
        """Where something happens."""
        self._start(room=0.0)
        return self._place(company=False)

    def _start(self, room: float = 1.0) -> None:
        self._room, self._tenses = room, TENSES

    def _statement(self, about: m.Nominal | None = None) -> m.Clause:
        """A clause; about someone mentioned before, if ``about`` says whom, as often as not."""
        subject = self._again(about) if about and self._chance.happens(0.5) else None
        if self._chance.happens(0.15):
            clause = self._description(subject=subject)
        else:
            clause = self._action(subject=subject)
        if clause.time and self._chance.happens(0.5):
            clause = replace(clause, front="time")
        return clause

    def _again(self, about: m.Nominal) -> m.Nominal | None:
        if isinstance(about, m.Phrase):
            return m.Pronoun(3, plural=about.plural, gender=about.gender, noun=about.noun)
        if isinstance(about, m.Name):
            return m.Pronoun(3, gender=about.gender)
        return about

    def _question(self) -> m.Sentence:
        clause = replace(self._action(), negated=False, complement=None)
        if clause.verb and clause.verb.frame in "cqz":
            return self.sentence()
        word = self._chance.among(
            {"subject": 5, "why": 2, "where": 2, "when": 1, "what": 2, "who": 2}
        )
        if word == "where":
            clause = replace(clause, place=None)
        elif word == "when":
            clause = replace(clause, time=None)
        elif word == "what":
            if not clause.direct or clause.indirect:
                return self.sentence()
            clause = replace(clause, direct=None)
        elif word == "who":
            if clause.passive or (clause.verb and "P" not in clause.verb.subjects):
                return self.sentence()
            clause = replace(clause, subject=m.Name("who", "wer", "m"))
        if clause.frequency and clause.frequency[0] == "never":
            clause = replace(clause, frequency=None)
        return m.Sentence(replace(clause, front=word), question=True)

    def _fronted(self) -> m.Sentence:
        """An object first: *den Hund sieht er*, it is the dog that he sees."""
        clause = self._action()
        thing = clause.direct or clause.indirect
        if not isinstance(thing, m.Phrase) or thing.relative or clause.negated or clause.passive:
            return self.sentence()
        if thing is clause.direct and not shows_case(clause.subject, thing):
            return self.sentence()
        return m.Sentence(replace(clause, front="object", time=None))

    def _description(self, *, subject: m.Nominal | None = None, compare: bool = False) -> m.Clause:
        """Someone or something is so, or is more so than another."""
        subject = subject or self._nominal("PATVLXIFC")
        kind = (
            subject.noun.kind if isinstance(subject, m.Phrase | m.Pronoun) and subject.noun else "P"
        )
        adjective = self._chance.early(adjectives(kind))
        predicate = m.Predicate(adjective=adjective)
        if compare:
            predicate = replace(predicate, than=self._other(subject, kind))
        elif kind == "P" and not subject.plural and self._chance.happens(0.3):
            predicate = m.Predicate(nominal=self._phrase("P", determiner="a"))
        return m.Clause(
            subject,
            tense=self._tense(),
            predicate=predicate,
            negated=self._chance.happens(0.12),
        )

    def _other(self, subject: m.Nominal, kind: str) -> m.Phrase:
        """Someone or something of the same kind that is called otherwise."""
        other = self._phrase(kind)
        while isinstance(subject, m.Phrase) and other.noun == subject.noun:
            other = self._phrase(kind)
        return other

    def _action(self, subject: m.Nominal | None = None, depth: int = 0) -> m.Clause:
        """Someone does something."""
        kind = "P"
        if isinstance(subject, m.Pronoun) and subject.noun:
            kind = subject.noun.kind
        verb = self._verb(kind if subject else "", depth)
        if verb is None:
            return self._description(subject=subject)
        subject = subject or self._nominal(verb.subjects)
        clause = m.Clause(subject, verb, tense=self._tense(), negated=self._chance.happens(0.1))
        clause = self._with_objects(clause, verb, depth)
        if verb.frame == "t" and clause.tense in ("present", "past") and self._chance.happens(0.08):
            clause = self._passive(clause)
        return self._with_adverbs(clause, verb)

    def _verb(self, subject_kind: str, depth: int) -> Verb | None:
        weights = dict(FRAMES)
        if depth or self._room < 0.5:
            for frame in "cqz":
                weights.pop(frame)
        frame = self._chance.among(weights)
        choice = verbs(frame, subject_kind)
        return self._chance.early(choice) if choice else None

    def _with_objects(self, clause: m.Clause, verb: Verb, depth: int) -> m.Clause:
        if verb.frame == "t":
            return replace(clause, direct=self._nominal(verb.objects, subject=clause.subject))
        if verb.frame == "d":
            return replace(clause, indirect=self._nominal(verb.objects, subject=clause.subject))
        if verb.frame == "b":
            return replace(
                clause,
                indirect=self._nominal("P", subject=clause.subject),
                direct=self._nominal(verb.objects, pronouns=False),
            )
        if verb.frame == "p":
            assert verb.preposition is not None
            thing = self._nominal(verb.objects, subject=clause.subject)
            return replace(clause, oblique=m.Adverbial(m.Preposition(*verb.preposition), thing))
        if verb.frame == "m":
            return replace(clause, oblique=self._direction(verb))
        if verb.frame in "cq":
            return replace(clause, complement=self._embedded(depth))
        if verb.frame == "z":
            inner = replace(self._action(clause.subject, depth + 1), negated=False)
            if inner.verb and inner.verb.frame != "z" and not inner.passive:
                plain = replace(inner, tense="present", frequency=None, time=None)
                return replace(clause, complement=plain)
            return replace(clause, verb=verbs("i", "P")[0])
        return clause

    def _embedded(self, depth: int) -> m.Clause:
        self._room *= 0.6
        if self._chance.happens(0.2):
            return self._description()
        return self._action(depth=depth + 1)

    def _passive(self, clause: m.Clause) -> m.Clause:
        if not isinstance(clause.direct, m.Phrase) or isinstance(clause.subject, m.Pronoun):
            return clause
        if clause.verb and clause.verb.infinitive in ("haben", "kennen"):
            return clause
        agent = m.Adverbial(BY, clause.subject)
        return replace(
            clause, subject=clause.direct, direct=None, oblique=agent, passive=True, negated=False
        )

    def _with_adverbs(self, clause: m.Clause, verb: Verb) -> m.Clause:
        tense = clause.tense if clause.tense in TENSES else "future"
        if self._roomy(0.35) and tense != "perfect":
            clause = replace(clause, time=self._chance.early(times(tense)))
        elif self._roomy(0.2) and not clause.negated:
            clause = replace(clause, frequency=self._chance.early(m.FREQUENCIES))
        if verb.frame in "tidp" and self._roomy(0.15) and "P" in verb.subjects:
            clause = replace(clause, manner=self._chance.early(MANNERS))
        if verb.frame in "tid" and self._roomy(0.4):
            clause = replace(clause, place=self._place(company=verb.frame != "i"))
        return clause

    def _tense(self) -> str:
        tense = self._chance.among(self._tenses)
        return self._chance.early(m.MODALS) if tense == "modal" else tense

    def _roomy(self, probability: float) -> bool:
        """Whether another part comes along; each one makes the next less likely."""
        if not self._chance.happens(probability * self._room):
            return False
        self._room *= 0.75
        return True

    def _direction(self, verb: Verb) -> m.Adverbial:
        if "K" in verb.objects and ("L" not in verb.objects or self._chance.happens(0.5)):
            english, valdish = self._chance.early(CITIES)
            return m.Adverbial(m.Preposition("to", "nach", "dat"), m.Name(english, valdish, "n"))
        preposition = m.Preposition(*self._chance.early(m.TOWARDS["L"]))
        return m.Adverbial(preposition, self._nominal("L", pronouns=False))

    def _place(self, *, company: bool) -> m.Adverbial:
        kind = self._chance.among(PLACES | {"person": 4.0 if company else 0.0})
        if kind == "city":
            english, valdish = self._chance.early(CITIES)
            return m.Adverbial(m.Preposition("in", "in", "dat"), m.Name(english, valdish, "n"))
        if kind == "person":
            return m.Adverbial(m.Preposition(*self._chance.early(m.WITH)), self._nominal("P"))
        english, valdish = self._chance.early(m.WHERE[kind])
        thing = self._nominal(kind, pronouns=False)
        return m.Adverbial(m.Preposition(english, valdish, "dat"), thing)

    def _nominal(
        self, kinds: str, *, pronouns: bool = True, subject: m.Nominal | None = None
    ) -> m.Nominal:
        """Someone or something of these kinds, and not the subject itself."""
        if pronouns and "P" in kinds:
            if self._chance.happens(0.22):
                pronoun = self._chance.early(m.PERSONAL)
                clash = isinstance(subject, m.Pronoun) and subject.person == pronoun.person
                if not clash:
                    return pronoun
            elif self._chance.happens(0.12):
                name, gender = self._chance.early(NAMES)
                return m.Name(name, name, gender)
        return self._phrase(kinds)

    def _phrase(self, kinds: str, *, determiner: str = "") -> m.Phrase:
        noun = self._chance.early(nouns(kinds))
        mass = noun.english_plural == "-"
        determiner = determiner or self._chance.among(DETERMINERS)
        if mass and determiner in ("every", *ALWAYS_PLURAL):
            determiner = "the"
        plural = determiner in ALWAYS_PLURAL
        if not mass and not plural and determiner != "every":
            plural = self._chance.happens(0.2)
        phrase = m.Phrase(noun, determiner, plural)
        if noun.kind == "S":
            water = m.Phrase(self._chance.early(OF_SHORE))
            return replace(phrase, determiner="the", plural=False, owner=water)
        if self._roomy(0.4):
            phrase = replace(phrase, adjectives=self._adjectives(noun))
        if noun.kind in "TLFVX" and not noun.ambiguous and self._roomy(0.2):
            return replace(phrase, modifier=self._chance.early(nouns("TLFAV", plain=True)))
        if determiner in ("the", "a", "two", "many") and not mass and self._roomy(0.1):
            return replace(phrase, owner=self._phrase("P", determiner="the"))
        if self._roomy(0.15):
            return replace(phrase, relative=self._relative(phrase))
        return phrase

    def _adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        first = self._chance.early(adjectives(noun.kind))
        if not self._roomy(0.12):
            return (first,)
        second = self._chance.early(adjectives(noun.kind))
        return (first,) if second is first else (first, second)

    def _relative(self, phrase: m.Phrase) -> m.Clause | None:
        """A clause about the noun, which is its subject or its object."""
        gap = m.Gap(phrase.noun, phrase.plural)
        self._room *= 0.5
        if self._chance.happens(0.5):
            choice = verbs("td", object=phrase.noun.kind)
            if choice:
                verb = self._chance.early(choice)
                clause = m.Clause(self._nominal(verb.subjects), verb, tense=self._tense())
                if verb.frame == "t":
                    return replace(clause, direct=gap)
                return replace(clause, indirect=gap)
        choice = verbs("tdimp", phrase.noun.kind)
        if not choice:
            adjective = self._chance.early(adjectives(phrase.noun.kind))
            return m.Clause(gap, tense="past", predicate=m.Predicate(adjective=adjective))
        verb = self._chance.early(choice)
        clause = m.Clause(gap, verb, tense=self._tense(), negated=self._chance.happens(0.1))
        return self._with_objects(clause, verb, 1)
