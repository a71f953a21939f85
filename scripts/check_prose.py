#!/usr/bin/env python3
"""Finds sentences of comments and notes that begin with What, Who, Whose, Whoever, Of, That or Those (docs/STYLE.md).

check_prose.py [FILE]...      by default every tracked file; prints FILE:LINE and the sentence, and exits with 1 if any

Questions and headings may begin so. Code in fences of Markdown is no prose. Lines of notes that are wider than 120
columns are printed, too, but for tables and code.
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator

WIDTH = 120
BEGINNING = re.compile(r"(What|Who|Whose|Whoever|Of|That|Those)\b(?! course\b)")
END = re.compile(r"(?<=[.!?])[)\"']*\s+(?=[(\"']*[A-Z])")
# Literals come first: a comment's sign within one is none. A quote between digits parts a number.
C_TOKEN = re.compile(
    r"""R"(?P<tag>[^(]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/""",
    re.S,
)

Passage = tuple[int, str]  # number of its first line, text


def joined(comments: list[tuple[int, int, str]]) -> Iterator[Passage]:
    """Joins comments (line, column, text) of lines at one column into passages. An empty one ends a passage."""
    first, last, place, words = 0, -1, -1, ""
    for line, column, text in comments:
        text = text.strip()
        if line == last + 1 and column == place and text and words:
            words += " " + text
        else:
            if words:
                yield first, words
            first, place, words = line, column, text
        last = line
    if words:
        yield first, words


def of_c(text: str) -> Iterator[Passage]:
    comments = []
    for match in C_TOKEN.finditer(text):
        word = match.group()
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        if word.startswith("//"):
            comments.append((line, column, word.lstrip("/")))
        elif word.startswith("/*"):
            yield line, " ".join(part.strip(" *") for part in word[2:-2].splitlines()).strip()
    yield from joined(comments)


def of_python(text: str) -> Iterator[Passage]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from joined([(t.start[0], t.start[1], t.string.lstrip("#!")) for t in tokens if t.type == tokenize.COMMENT])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = ast.get_docstring(node)
            if words:
                line = node.body[0].lineno
                for part in re.finditer(r"(?:.+\n?)+", words):
                    yield line + words.count("\n", 0, part.start()), " ".join(part.group().split())


def of_script(text: str) -> Iterator[Passage]:
    comments = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"""((?:[^#"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*')*?(?:^|\s))#(.*)""", line)
        if match:
            comments.append((number, match.end(1), match.group(2)))
    yield from joined(comments)


def unfenced(text: str) -> Iterator[tuple[int, str]]:
    """Numbers lines; those of fences are empty."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        yield number, "" if fence or fenced else line


def of_markdown(text: str) -> Iterator[Passage]:
    passage: list[str] = []
    first = 0
    for number, line in [*unfenced(text), (0, "")]:
        item = re.match(r"\s*(?:[*-]|\d+\.|#+)\s+|\s*\|", line)
        if passage and (not line.strip() or item):
            yield first, " ".join(passage)
            passage = []
        if not line.strip():
            continue
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split("|"):
                yield number, cell.strip()
            continue
        if line.startswith("#"):
            continue
        if not passage:
            first = number
        passage.append(line[item.end() :] if item else line.strip())


READERS = {
    (".h", ".c", ".cc", ".cu", ".cuh", ".capnp.h"): of_c,
    (".py", ".pyi"): of_python,
    (".sh", ".cmake", ".txt", ".toml", ".yaml", ".yml", ".capnp", ".service", ".target"): of_script,
    (".md",): of_markdown,
}


def passages(path: pathlib.Path) -> Iterator[Passage]:
    for endings, read in READERS.items():
        if path.suffix in endings:
            return read(path.read_text(encoding="utf-8"))
    with path.open("rb") as file:
        start = file.read(64)
    if not start.startswith(b"#!"):
        return iter(())
    return (of_python if b"python" in start else of_script)(path.read_text(encoding="utf-8"))


def faults(text: str) -> Iterator[str]:
    for sentence in END.split(text):
        sentence = sentence.lstrip("(\"'*_ ")
        if BEGINNING.match(sentence) and not sentence.rstrip(")\"'*_ ").endswith("?"):
            yield sentence


def wide_lines(text: str) -> Iterator[int]:
    for number, line in unfenced(text):
        if len(line) > WIDTH and not (line.lstrip().startswith("|") or line.startswith("    ")):
            yield number


def main() -> None:
    names = sys.argv[1:]
    if not names:
        listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
        names = [name for name in listed.split("\0") if name]
    found = wide = 0
    for name in names:
        path = pathlib.Path(name)
        if not path.is_file():
            continue
        for line, text in passages(path):
            for sentence in faults(text):
                found += 1
                print(f"{name}:{line}: {sentence[:120]}")
        if path.suffix == ".md" and path.parts[0] != "bench":
            for line in wide_lines(path.read_text(encoding="utf-8")):
                wide += 1
                print(f"{name}:{line}: wider than {WIDTH} columns")
    if found:
        print(f"check_prose.py: {found} sentences; begin with a verb or a head noun")
    if wide:
        print(f"check_prose.py: {wide} lines are too wide")
    sys.exit(bool(found or wide))


if __name__ == "__main__":
    main()
