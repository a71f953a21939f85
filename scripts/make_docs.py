#!/usr/bin/env python3
"""Makes the documentation's site in build/docs/site: the notes, and a reference of Python and C from their comments.

make_docs.py MKDOCS      MKDOCS: the program, with mkdocs-material and mkdocstrings (`make docs` installs them)

A link or a heading that is not there is an error.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "docs"
PAGES = OUT / "pages"
TOP = ["ARCHITECTURE.md", "CHANGELOG.md", "HACKING.md", "SECURITY.md"]
MODULES = ["hf", "lightning", "accelerate"]
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def with_links_of_site(text: str) -> str:
    """Points links to notes at the site's pages, which lie in one folder; links to other files become plain text."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        name = pathlib.PurePosixPath(target).name.replace("README.md", "index.md")
        return f"[{words}]({name}{anchor or ''})" if name.endswith((".md", ".png")) else words

    return LINK.sub(link, text)


def python_reference() -> str:
    text = "# Python\n\n`import tributary.torch as trib`. [PyTorch](torch.md) describes their use.\n\n"
    public = re.search(r"__all__ = \[(.*?)\]", (ROOT / "python/tributary/torch/__init__.py").read_text("utf-8"), re.S)
    if public is None:
        sys.exit("make_docs.py: python/tributary/torch/__init__.py has no __all__; give it one")
    names = re.findall(r'"(\w+)"', public.group(1))
    return text + "\n".join(f"::: tributary.torch.{name}\n" for name in [*names, *MODULES])


def copy_package() -> None:
    """Copies the package, with Markdown for the few marks of reStructuredText in its docstrings."""
    shutil.rmtree(OUT / "python", ignore_errors=True)
    for source in (ROOT / "python/tributary").rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        text = re.sub(r"^ *\.\. code-block:: python\n\n", "", text, flags=re.M)
        text = re.sub(r":(?:class|meth|func|attr|mod|exc):`~?([^`]+)`", r"`\1`", text)
        copy = OUT / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")


def c_reference() -> str:
    """Each comment of tributary.h that begins a line, and the declarations below it."""
    text = "# C\n\n`#include <tributary.h>`, linked with `-ltributary`.\n"
    lines = (ROOT / "session/tributary.h").read_text(encoding="utf-8").splitlines()
    entries: list[tuple[list[str], list[str]]] = []  # comment, code
    inside = False
    for line in lines:
        if line.startswith("/*"):
            entries.append(([], []))
            inside = True
        if inside:
            entries[-1][0].append(re.sub(r"^(/\*| \*(?!/)) ?", "", line).replace("*/", "").rstrip())
            inside = "*/" not in line
        elif not line.startswith("#if") and not line.startswith("#endif") and line != "}":
            entries[-1][1].append(line.replace("TRIBUTARY_API ", ""))
    introduction, _ = entries.pop(0)
    text += "\n```text\n" + "\n".join(introduction) + "\n```\n"
    for comment, code in entries:
        declared = "\n".join(code).strip()
        bare = re.sub(r"/\*.*?\*/", "", declared, flags=re.S)
        names = re.findall(r"\} (tributary_\w+);()|\b(tributary_\w+)\(", bare)
        names = names or re.findall(r"^typedef .*\b(tributary_\w+);()", bare, re.M)
        names = names or re.findall(r"#define (TRIBUTARY_\w+)()", bare)
        if names:
            title = ", ".join(dict.fromkeys("".join(name) for name in names))
            text += f"\n## {title}\n\n" + "\n".join(comment) + f"\n\n```c\n{declared}\n```\n"
    return text


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    notes = [ROOT / name for name in [*TOP, "bench/RESULTS.md"]] + sorted((ROOT / "docs").glob("*.md"))
    for note in notes:
        (PAGES / note.name).write_text(with_links_of_site(note.read_text(encoding="utf-8")), encoding="utf-8")
    home = with_links_of_site((ROOT / "README.md").read_text(encoding="utf-8"))
    (PAGES / "index.md").write_text(home, encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.png"):
        shutil.copy(picture, PAGES / picture.name)
    (PAGES / "python.md").write_text(python_reference(), encoding="utf-8")
    copy_package()
    (PAGES / "c.md").write_text(c_reference(), encoding="utf-8")
    config = (ROOT / "packaging/docs/mkdocs.yml").read_text(encoding="utf-8")
    (OUT / "mkdocs.yml").write_text(f"docs_dir: {PAGES}\nsite_dir: {OUT / 'site'}\n{config}", encoding="utf-8")
    command = [sys.argv[1], "build", "--strict", "--clean", "--quiet", "--config-file", str(OUT / "mkdocs.yml")]
    if subprocess.run(command, cwd=OUT, check=False).returncode != 0:
        sys.exit("make_docs.py: mkdocs failed; its lines are above")
    print(f"open {OUT / 'site' / 'index.html'}")


main()
