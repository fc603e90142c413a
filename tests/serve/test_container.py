"""The Dockerfile, as far as it can be held to its word without building it."""

import json
import re
import tomllib
from pathlib import Path

from multibranch import cli

ROOT = Path(__file__).resolve().parents[2]


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined]


def only(name: str) -> str:
    [found] = [rest for word, rest in instructions() if word == name]
    return found


def test_it_runs_as_an_ordinary_user():
    words = [word for word, _ in instructions()]
    assert only("USER") not in ("root", "0")
    uid = only("USER")
    assert any(word == "RUN" and f"--uid {uid}" in rest for word, rest in instructions())
    # Nothing is run, copied or installed after the user was changed.
    assert not {"RUN", "COPY", "ADD"} & set(words[words.index("USER") :])
    assert words.index("USER") < words.index("CMD")


def test_what_it_copies_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for word, rest in instructions():
        if word == "COPY":
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), name
                assert f"!{name}" in ignored


def test_its_command_is_one_that_the_program_takes():
    words = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    assert words[:2] == ["multibranch", "serve"]
    args = cli._parser("serve").parse_args(words[1:])
    assert (args.host, str(args.port)) == ("0.0.0.0", only("EXPOSE"))
    health = only("HEALTHCHECK")
    assert f":{args.port}/health" in health
    compile(json.loads(health[health.index("[") :])[2], "HEALTHCHECK", "exec")


def test_the_page_is_part_of_what_is_installed():
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["*"]
    files = list((ROOT / "src" / "multibranch" / "serve" / "page").iterdir())
    assert {path.name for path in files} >= {"index.html", "style.css", "page.js", "icon.svg"}
    for path in files:
        assert any(path.match(pattern) for pattern in patterns), path.name


def test_what_it_installs_exists():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for _, rest in instructions():
        for extras in re.findall(r'"\.\[(.*?)\]"', rest):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = ", pyproject, re.MULTILINE)
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
