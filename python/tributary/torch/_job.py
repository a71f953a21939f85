"""The text of a job, TOML, from options; or from a file, with what the file leaves open."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from tributary.torch._formula import MEAN, Formula, Keys, Value

Sections = dict[str, Keys]
JobArgument = Union[None, str, "os.PathLike[str]", Mapping[str, Mapping[str, Value]]]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.-]+)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*([A-Za-z0-9_-]+)\s*=\s*("[^"]*"|'[^']*'|[^#]*)""")


@dataclass(frozen=True)
class Job:
    """A job's text, and what the front end has to know of it."""

    name: str
    text: str
    optimizer: str  # of [optimizer]
    scheduled: bool  # the job's own [schedule] says the rates
    mode: str = "sync"


def toml(value: Value) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


def _table(header: str, keys: Mapping[str, Value]) -> str:
    return "\n".join([header, *(f"{key} = {toml(value)}" for key, value in keys.items())]) + "\n"


class JobFile:
    """The sections and plain keys of a job's text. The library reads it properly, and complains; this looks only for
    what is given.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.groups = 0
        self.sections: dict[str, dict[str, str]] = {}
        section: dict[str, str] = {}
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header is not None:
                name = header.group(2)
                if header.group(1) == "[[":
                    self.groups += name == "groups"
                    section = {}
                else:
                    section = self.sections.setdefault(name, {})
                continue
            key = _KEY.match(line)
            if key is not None:
                section[key.group(1)] = key.group(2).strip().strip("\"'")

    def get(self, section: str, key: str) -> str | None:
        return self.sections.get(section, {}).get(key)

    def with_keys(self, sections: Sections) -> str:
        """The text, and in each of the sections the keys that it leaves open."""
        lines = self.text.rstrip("\n").split("\n") if self.text else []
        for name, keys in sections.items():
            left = {key: value for key, value in keys.items() if self.get(name, key) is None}
            if not left:
                continue
            if name not in self.sections:
                lines += ["", _table(f"[{name}]", left).rstrip("\n")]
                continue
            at = next(i for i, line in enumerate(lines) if (m := _HEADER.match(line)) and m.group(2) == name)
            lines[at + 1 : at + 1] = [f"{key} = {toml(value)}" for key, value in left.items()]
        return "\n".join(lines).strip("\n") + "\n"


def read(job: JobArgument) -> JobFile:
    """What the user says of the job: the path of a file, or sections as dicts."""
    if job is None:
        return JobFile("", "")
    if isinstance(job, Mapping):
        text = "\n".join(_table(f"[{name}]", keys) for name, keys in job.items())
        return JobFile(text, "job=")
    path = Path(job)
    try:
        return JobFile(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ValueError(f"job={str(path)!r}: cannot read the job's file: {error.strerror}") from error


def encoding(push: str, pull: str) -> Keys:
    """The keys of ``[encoding]`` that are not its defaults."""
    return {key: value for key, value in (("push", push), ("pull", pull)) if value != "fp32"}


def gate(max_grad_norm: float | None, loss_scale: str | float | None) -> Keys:
    """The keys of ``[gate]``."""
    keys: Keys = {}
    if max_grad_norm is not None:
        keys["clip_norm"] = float(max_grad_norm)
    if loss_scale is not None:
        keys["loss_scale"] = loss_scale if isinstance(loss_scale, str) else f"{float(loss_scale):.17g}"
    return keys


def build_local(given: JobFile, name: str, options: Sections) -> Job:
    """The text of a job whose options say its optimizer."""
    text = given.with_keys(options)
    made = JobFile(text, given.source)
    return Job(
        name=made.get("job", "name") or name,
        text=text,
        optimizer=made.get("optimizer", "name") or "sgd",
        scheduled=True,
        mode=made.get("job", "mode") or "sync",
    )


def build(given: JobFile, name: str, formula: Formula, options: Sections) -> Job:
    """The job's text.

    Args:
        given: what the user says of the job. Nothing that is in it is changed.
        name: of the job, if ``given`` has none.
        formula: of the torch optimizer.
        options: further sections.

    Raises:
        ValueError: ``given`` and the options, or the optimizer, contradict each other.
    """
    for section, keys in options.items():
        for key, value in keys.items():
            there = given.get(section, key)
            if there is not None and there != str(value):
                raise ValueError(
                    f"{key}={value!r} contradicts {section}.{key} = {there!r} of {given.source}: say it in one place"
                )
    named = given.get("optimizer", "name")
    if named is not None and named not in (formula.name, MEAN):
        raise ValueError(
            f"{given.source} has optimizer.name = {named!r}, but the torch optimizer is the servers' "
            f"{formula.name!r}: remove [optimizer] from the file, or make the optimizer that it names"
        )
    sections: Sections = {"job": {"name": name}, **{key: dict(value) for key, value in options.items() if value}}
    further: list[Keys] = []
    optimizer = formula.name
    if "optimizer" in given.sections:
        optimizer = named or "sgd"
        wanted = 0 if optimizer == MEAN else max(0, len(formula.groups) - 1)
        if given.groups != wanted:
            raise ValueError(
                f"{given.source} has [optimizer] and {given.groups} [[groups]], but the torch optimizer has "
                f"{len(formula.groups)} parameter groups: give {wanted} [[groups]], or remove both to have them made"
            )
    elif formula.name == MEAN:
        sections["optimizer"] = {"name": MEAN}
    else:
        # Rates go with the gradients: a program that is started again with other ones goes on with the same job.
        said = {"lr"} if "schedule" not in given.sections else set()
        groups = [{key: value for key, value in keys.items() if key not in said} for keys in formula.groups]
        first = groups[0]
        sections["optimizer"] = {"name": formula.name, **first}
        further = [
            {key: value for key, value in keys.items() if key == "weight_decay" or first.get(key) != value}
            for keys in groups[1:]
        ]
    text = given.with_keys(sections)
    text += "".join("\n" + _table("[[groups]]", keys) for keys in further)
    return Job(
        name=given.get("job", "name") or name,
        text=text,
        optimizer=optimizer,
        scheduled="schedule" in given.sections,
        mode=given.get("job", "mode") or "sync",
    )
