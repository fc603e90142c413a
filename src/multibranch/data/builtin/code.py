"""The built-in code corpus: what a Python function does, in English, and the function.

A function goes through things (users, orders, files, …): it selects some of them, takes something
from each, and makes one result of it; it may first check its arguments. The same meaning is
described in several ways and written in one. Literals are the placeholders _NUM, _STR and _BOOL,
which are names to Python, so that every function parses.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from multibranch.data.builtin.chance import Chance

# Things and their attributes: numbers, texts, yes or no.
THINGS = """
user users | age score balance | name email city | active admin
item items | price weight amount | name label category | available fragile
order orders | total discount number | customer address status | paid shipped
file files | size lines version | name path owner | hidden locked
node nodes | depth cost weight | name kind label | visited open
word words | length count rank | text stem language | frequent known
message messages | length priority number | subject sender body | read urgent
task tasks | priority effort progress | title owner status | done blocked
book books | pages year price | title author publisher | lent damaged
event events | duration start number | name place kind | public cancelled
player players | score level age | name team country | injured captain
room rooms | size floor number | name building kind | free locked
line lines | length number indent | text label source | empty marked
city cities | population area height | name country region | capital coastal
car cars | speed year price | brand colour model | electric sold
team teams | points wins rank | name coach country | qualified retired
"""

TOKEN = re.compile(r"\w+|[<>=!+*-]=|[^\w\s]")
COMPARISONS = (
    ("greater than", ">"),
    ("less than", "<"),
    ("equal to", "=="),
    ("at least", ">="),
    ("at most", "<="),
)
LIMITS = {"limit": 5.0, "minimum": 2.0, "value": 2.0, "_NUM": 6.0}
TEXT_TESTS = (
    ("starts with", "{0}.startswith({1})", "prefix"),
    ("ends with", "{0}.endswith({1})", "suffix"),
    ("contains", "{1} in {0}", "pattern"),
    ("is", "{0} == {1}", "key"),
    ("is not", "{0} != {1}", "key"),
)
TEXT_CHANGES = (
    ("in upper case", ".upper()"),
    ("in lower case", ".lower()"),
    ("without surrounding blanks", ".strip()"),
)
RETURN = ("return", "get", "compute", "find", "give back")
RESULTS = {
    "list": 5.0,
    "count": 3.0,
    "sum": 3.0,
    "largest": 2.0,
    "first": 2.0,
    "any": 1.5,
    "every": 1.5,
    "group": 2.0,
    "index": 2.0,
    "average": 2.0,
    "join": 2.0,
    "change": 2.5,
    "sorted": 2.5,
    "remove": 1.5,
}


@dataclass(frozen=True)
class Thing:
    """A kind of object that functions are about."""

    one: str
    many: str
    numbers: list[str]
    texts: list[str]
    flags: list[str]


@dataclass(frozen=True)
class Condition:
    """What must hold of a thing: in words, in Python, and the parameters it needs."""

    words: str
    test: str
    parameters: tuple[str, ...] = ()


def _things() -> tuple[Thing, ...]:
    rows = [[cell.split() for cell in row.split("|")] for row in THINGS.strip().splitlines()]
    return tuple(Thing(names[0], names[1], *attributes) for names, *attributes in rows)


ALL_THINGS = _things()


def pairs(seed: int) -> Iterator[tuple[str, str]]:
    """An endless stream of (description, tokens of the function)."""
    chance = Chance("code", seed)
    while True:
        description, lines = _function(chance)
        yield description, _tokens(lines)


def _tokens(lines: list[str]) -> str:
    """Lines of Python as one line of tokens, the layout as NEWLINE, INDENT and DEDENT."""
    tokens: list[str] = []
    depth = 0
    for line in lines:
        level = (len(line) - len(line.lstrip())) // 4
        tokens += ["INDENT"] * (level - depth) + ["DEDENT"] * (depth - level)
        tokens += [*TOKEN.findall(line), "NEWLINE"]
        depth = level
    return " ".join(tokens + ["DEDENT"] * depth)


def _function(chance: Chance) -> tuple[str, list[str]]:
    thing = chance.early(ALL_THINGS)
    condition = _conditions(chance, thing)
    result = chance.among(RESULTS)
    words, name, body, extra = _RESULTS[result](chance, thing, condition)
    parameters = [thing.many]
    for parameter in (*condition.parameters, *extra):
        if parameter not in (*parameters, "_NUM", "_STR", "_BOOL"):
            parameters.append(parameter)
    numeric = {"amount", *(name for name in condition.parameters if name in LIMITS)}
    checked, check = _check(chance, thing, parameters, numeric)
    lines = [f"def {name}({', '.join(parameters)}):", *_indent([*check, *body])]
    return f"{words}{checked} .", lines


def _conditions(chance: Chance, thing: Thing) -> Condition:
    """No condition, one, or two joined."""
    how_many = chance.among({0: 2, 1: 6, 2: 2})
    if how_many == 0:
        return Condition("", "")
    first = _condition(chance, thing)
    if how_many == 1:
        return first
    second = _condition(chance, thing)
    if second.test == first.test:
        return first
    joint = chance.pick(("and", "or"))
    return Condition(
        f"{first.words} {joint} {second.words}",
        f"{first.test} {joint} {second.test}",
        first.parameters + second.parameters,
    )


def _condition(chance: Chance, thing: Thing) -> Condition:
    kind = chance.among({"number": 4, "text": 3, "flag": 3})
    if kind == "number":
        attribute = chance.early(thing.numbers)
        words, sign = chance.early(COMPARISONS)
        limit = chance.among(LIMITS)
        text = f"whose {attribute} is {words} {limit}"
        return Condition(text, f"{thing.one}.{attribute} {sign} {limit}", (limit,))
    if kind == "text":
        attribute = chance.early(thing.texts)
        words, test, parameter = chance.early(TEXT_TESTS)
        value = parameter if chance.happens(0.5) else "_STR"
        code = test.format(f"{thing.one}.{attribute}", value)
        return Condition(f"whose {attribute} {words} {value}", code, (value,))
    flag = chance.early(thing.flags)
    if chance.happens(0.4):
        return Condition(f"that are not {flag}", f"not {thing.one}.{flag}")
    return Condition(f"that are {flag}", f"{thing.one}.{flag}")


def _check(
    chance: Chance, thing: Thing, parameters: list[str], numeric: set[str]
) -> tuple[str, list[str]]:
    """What the function does with arguments it cannot use."""
    kind = chance.among({"none": 6, "raise": 2, "empty": 1, "default": 1})
    if kind == "raise":
        error = chance.pick(("value", "lookup", "runtime"))
        text = f" , or raise a {error} error if there are no {thing.many}"
        return text, [f"if not {thing.many}:", f"    raise {error.title()}Error(_STR)"]
    if kind == "empty":
        text = f" ; do nothing if {thing.many} is none"
        return text, [f"if {thing.many} is None:", "    return None"]
    if kind == "default" and len(parameters) > 1:
        name = parameters[1]
        default = "_NUM" if name in numeric else "_STR"
        text = f" , where {name} is {default} by default"
        return text, [f"if {name} is None:", f"    {name} = {default}"]
    return "", []


Written = tuple[str, str, list[str], tuple[str, ...]]  # words, name, body, further parameters


def _which(thing: Thing, condition: Condition) -> str:
    return f"{thing.many} {condition.words}" if condition.words else f"all {thing.many}"


def _source(thing: Thing, condition: Condition) -> str:
    clause = f"for {thing.one} in {thing.many}"
    return f"{clause} if {condition.test}" if condition.test else clause


def _loop(thing: Thing, condition: Condition, body: list[str]) -> list[str]:
    """A loop over the things that runs ``body`` where the condition holds."""
    inner = [f"if {condition.test}:", *_indent(body)] if condition.test else body
    return [f"for {thing.one} in {thing.many}:", *_indent(inner)]


def _list(chance: Chance, thing: Thing, condition: Condition) -> Written:
    verb = chance.early(RETURN)
    which, source = _which(thing, condition), _source(thing, condition)
    if chance.happens(0.35):
        words = f"{verb} {which}"
        return words, f"select_{thing.many}", [f"return [{thing.one} {source}]"], ()
    attribute = chance.early(thing.numbers + thing.texts)
    value, change = f"{thing.one}.{attribute}", ""
    if attribute in thing.texts and chance.happens(0.4):
        manner, call = chance.early(TEXT_CHANGES)
        value, change = value + call, f" {manner}"
    words = f"{verb} the {attribute}{change} of {which}"
    return words, f"{attribute}_of_{thing.many}", [f"return [{value} {source}]"], ()


def _count(chance: Chance, thing: Thing, condition: Condition) -> Written:
    words = f"{chance.pick(('count', 'determine the count of'))} {_which(thing, condition)}"
    if not condition.test:
        return words, f"count_{thing.many}", [f"return len({thing.many})"], ()
    body = ["count = _NUM", *_loop(thing, condition, ["count += _NUM"]), "return count"]
    return words, f"count_{thing.many}", body, ()


def _sum(chance: Chance, thing: Thing, condition: Condition) -> Written:
    attribute = chance.early(thing.numbers)
    words = f"{chance.pick(('add up', 'return the sum of'))} the {attribute} of "
    words += _which(thing, condition)
    body = [f"return sum({thing.one}.{attribute} {_source(thing, condition)})"]
    return words, f"total_{attribute}", body, ()


def _average(chance: Chance, thing: Thing, condition: Condition) -> Written:
    attribute = chance.early(thing.numbers)
    words = f"{chance.early(RETURN)} the average {attribute} of {_which(thing, condition)}"
    body = [
        f"values = [{thing.one}.{attribute} {_source(thing, condition)}]",
        "return sum(values) / len(values)",
    ]
    return words, f"average_{attribute}", body, ()


def _largest(chance: Chance, thing: Thing, condition: Condition) -> Written:
    attribute = chance.early(thing.numbers)
    word, call = chance.pick((("largest", "max"), ("smallest", "min")))
    words = f"{chance.early(RETURN)} the {thing.one} with the {word} {attribute}"
    words += f" among {_which(thing, condition)}"
    body = [f"chosen = [{thing.one} {_source(thing, condition)}]"] if condition.test else []
    where = "chosen" if condition.test else thing.many
    body.append(f"return {call}({where}, key=lambda {thing.one}: {thing.one}.{attribute})")
    return words, f"{word}_{thing.one}", body, ()


def _first(chance: Chance, thing: Thing, condition: Condition) -> Written:
    if not condition.test:
        return _count(chance, thing, condition)
    words = f"{chance.early(RETURN)} the first of the {_which(thing, condition)}"
    body = [*_loop(thing, condition, [f"return {thing.one}"]), "return None"]
    return words, f"find_{thing.one}", body, ()


def _any(chance: Chance, thing: Thing, condition: Condition) -> Written:
    if not condition.test:
        return _count(chance, thing, condition)
    start = chance.pick(("check whether there are", "return true if there are"))
    body = [f"return any({condition.test} for {thing.one} in {thing.many})"]
    return f"{start} {_which(thing, condition)}", f"has_{thing.one}", body, ()


def _every(chance: Chance, thing: Thing, condition: Condition) -> Written:
    if not condition.test:
        return _count(chance, thing, condition)
    start = chance.pick(("check whether there are only", "return true if there are only"))
    body = [f"return all({condition.test} for {thing.one} in {thing.many})"]
    return f"{start} {_which(thing, condition)}", f"only_{thing.many}", body, ()


def _group(chance: Chance, thing: Thing, condition: Condition) -> Written:
    attribute = chance.early(thing.texts)
    words = f"{chance.pick(('group', 'collect'))} {_which(thing, condition)} by {attribute}"
    add = f"groups.setdefault({thing.one}.{attribute}, []).append({thing.one})"
    body = ["groups = {}", *_loop(thing, condition, [add]), "return groups"]
    return words, f"group_by_{attribute}", body, ()


def _index(chance: Chance, thing: Thing, condition: Condition) -> Written:
    key, value = chance.early(thing.texts), chance.early(thing.numbers)
    words = f"{chance.pick(('map', 'build a table from'))} {key} to {value} for "
    words += _which(thing, condition)
    pair = f"{thing.one}.{key}: {thing.one}.{value}"
    body = [f"return {{{pair} {_source(thing, condition)}}}"]
    return words, f"{value}_by_{key}", body, ()


def _join(chance: Chance, thing: Thing, condition: Condition) -> Written:
    attribute = chance.early(thing.texts)
    separator = "separator" if chance.happens(0.5) else "_STR"
    words = f"{chance.pick(('join', 'concatenate'))} the {attribute} of "
    words += f"{_which(thing, condition)} with {separator}"
    body = [f"return {separator}.join({thing.one}.{attribute} {_source(thing, condition)})"]
    return words, f"join_{attribute}", body, (separator,)


def _change(chance: Chance, thing: Thing, condition: Condition) -> Written:
    kind = chance.among({"flag": 3, "number": 3, "text": 2})
    which = _which(thing, condition)
    if kind == "flag":
        flag = chance.early(thing.flags)
        words, name = f"mark {which} as {flag}", f"mark_{flag}"
        line = f"{thing.one}.{flag} = _BOOL"
        return words, name, _loop(thing, condition, [line]), ()
    if kind == "text":
        attribute = chance.early(thing.texts)
        words, name = f"set the {attribute} of {which} to value", f"set_{attribute}"
        line = f"{thing.one}.{attribute} = value"
        return words, name, _loop(thing, condition, [line]), ("value",)
    attribute = chance.early(thing.numbers)
    verb, sign = chance.pick((("increase", "+="), ("decrease", "-="), ("multiply", "*=")))
    words, name = f"{verb} the {attribute} of {which} by amount", f"{verb}_{attribute}"
    line = f"{thing.one}.{attribute} {sign} amount"
    return words, name, _loop(thing, condition, [line]), ("amount",)


def _sorted(chance: Chance, thing: Thing, condition: Condition) -> Written:
    attribute = chance.early(thing.numbers + thing.texts)
    down = chance.happens(0.4)
    words = f"{chance.pick(('sort', 'return in order'))} {_which(thing, condition)} by {attribute}"
    words += " in descending order" if down else ""
    chosen = f"[{thing.one} {_source(thing, condition)}]" if condition.test else thing.many
    key = f"key=lambda {thing.one}: {thing.one}.{attribute}"
    reverse = ", reverse=_BOOL" if down else ""
    return words, f"sort_by_{attribute}", [f"return sorted({chosen}, {key}{reverse})"], ()


def _remove(chance: Chance, thing: Thing, condition: Condition) -> Written:
    if not condition.test:
        words = f"{chance.pick(('remove', 'delete'))} all {thing.many}"
        return words, f"clear_{thing.many}", [f"{thing.many}.clear()"], ()
    words = f"{chance.pick(('remove', 'delete'))} {_which(thing, condition)}"
    joined = " or " in condition.test or " and " in condition.test
    test = f"({condition.test})" if joined else condition.test
    body = [f"return [{thing.one} for {thing.one} in {thing.many} if not {test}]"]
    return words, f"remove_{thing.many}", body, ()


_RESULTS = {
    "list": _list,
    "count": _count,
    "sum": _sum,
    "average": _average,
    "largest": _largest,
    "first": _first,
    "any": _any,
    "every": _every,
    "group": _group,
    "index": _index,
    "join": _join,
    "change": _change,
    "sorted": _sorted,
    "remove": _remove,
}


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
