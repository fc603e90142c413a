"""The rooms of the package and their imports, against the table in docs/architecture.md."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "multibranch"
TABLE = ROOT / "docs" / "architecture.md"


class Room(NamedTuple):
    """What the table says of a room."""

    rooms: set[str]  # rooms, or modules of rooms, that it may import
    packages: set[str]  # third-party packages that it may import
    lazy: set[str]  # those of them that it may import only inside functions


class Import(NamedTuple):
    """One imported module, in full, and where."""

    name: str
    lazy: bool  # inside a function, or for type checkers only
    place: str


def rooms() -> dict[str, Room]:
    """The table, by room, in its order."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        match = re.fullmatch(r"`(\w+)`", cells[0])
        if line.startswith("|") and match:
            uses, packages = cells[2], cells[3]
            lazy = set(re.findall(r"\*(\w+)\*", packages))
            eager = set(re.findall(r"\w+", packages)) - lazy
            found[match[1]] = Room(set(re.findall(r"`([\w.]+)`", uses)), eager | lazy, lazy)
    return found


def room_of(path: Path) -> str:
    """The room that a source file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or _is_room(path))


def _is_room(path: Path) -> bool:
    return path.name not in ("__init__.py", "__main__.py")


def imports(path: Path, *, text: str | None = None) -> Iterator[Import]:
    """Every import of a file, at whatever depth."""
    tree = ast.parse(path.read_text(encoding="utf-8") if text is None else text)
    for node, lazy in _walk(tree, lazy=False):
        place = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, lazy, place) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place}: imports are written in full here"
            for alias in node.names:
                # `from multibranch import nn` names a room; deeper, the module is enough.
                bare = node.module == "multibranch"
                yield Import(
                    f"multibranch.{alias.name}" if bare else node.module or "", lazy, place
                )


def _walk(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        yield child, inside
        yield from _walk(child, lazy=inside or checking)


def violations(room: str, found: Iterator[Import], allowed: dict[str, Room]) -> list[str]:
    """What the imports of one file of a room break."""
    rules, broken = allowed[room], []
    for name, lazy, place in found:
        first, _, rest = name.partition(".")
        if first == "multibranch":
            target = rest.partition(".")[0]
            known = {room, "__version__"} | (set() if room == "nn" else {"errors"})
            fits = any(rest == use or rest.startswith(f"{use}.") for use in rules.rooms | known)
            if target and not fits:
                broken.append(f"{place}: {room} may not import {name}")
        elif first not in sys.stdlib_module_names:
            if first not in rules.packages:
                broken.append(f"{place}: {room} may not import the package {first}")
            elif first in rules.lazy and not lazy:
                broken.append(f"{place}: {room} may import {first} only inside functions")
    return broken


def test_every_room_has_a_row_and_every_row_a_room() -> None:
    assert {room_of(path) for path in files()} == set(rooms())


def test_rooms_use_only_rooms_above_them() -> None:
    order = list(rooms())
    for name, room in rooms().items():
        for use in room.rooms:
            above = order[: order.index(name)]
            assert use.partition(".")[0] in above, f"{name} uses {use}, which is not above it"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    assert violations(room_of(path), imports(path), rooms()) == []


@pytest.mark.parametrize(
    ("room", "text", "wrong"),
    [
        ("nn", "from multibranch.errors import UserError", True),
        ("nn", "def f():\n    import multibranch.text", True),
        ("nn", "import numpy", True),
        ("nn", "import torch.nn.functional as F", False),
        ("data", "from multibranch import training", True),
        ("data", "import zstandard", True),
        ("data", "def f():\n    import zstandard", False),
        ("metrics", "from multibranch.text import code", True),
        ("metrics", "from multibranch.text.code import code_to_text", False),
        ("training", "class A:\n    def f(self):\n        import multibranch.decoding", True),
        ("cli", "if TYPE_CHECKING:\n    from multibranch.data.prepare import Progress", False),
    ],
)
def test_a_violation_is_seen(room: str, text: str, wrong: bool) -> None:
    assert bool(violations(room, imports(Path("x.py"), text=text), rooms())) == wrong
