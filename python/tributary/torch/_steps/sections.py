"""A job's sections, from options and from what the user says of it, as the JSON that the library reads."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from tributary.torch._steps.formula import MEAN, Formula, Keys, Value

Sections = dict[str, Keys]
JobArgument = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]

NO_CLIPPING = 3.4e38  # a clip_norm of [gate] that no norm in fp32 exceeds: the norm is measured


@dataclass(frozen=True)
class Job:
    """A job's sections as JSON, and what the front end has to know of it."""

    name: str
    text: str
    optimizer: str  # of [optimizer]
    scheduled: bool  # the job's own [schedule] says the rates
    loss_scale: str  # of [gate]; empty: there is none


class Given:
    """The user's configuration of a job, by section. The library checks it; this class completes it.

    Sections are as TOML has them. ``[[groups]]`` are ``groups[0]``, ``groups[1]`` and so on, as in the library's words.

    Args:
        sections: tables, and ``groups``, a list of tables.
        source: for messages.
    """

    def __init__(self, sections: Mapping[str, Any], source: str) -> None:
        self.source = source
        self.sections: dict[str, dict[str, Any]] = {}
        for name, keys in sections.items():
            if name == "groups" and isinstance(keys, Sequence):
                tables = {_group(i + 1): group for i, group in enumerate(keys)}
            else:
                tables = {name: keys}
            for section, table in tables.items():
                if not isinstance(table, Mapping):
                    raise ValueError(
                        f"{section} = {table!r} of {source}: must be a section, {{{section!r}: {{KEY: VALUE}}}}"
                    )
                self.sections[section] = _table(table)

    @property
    def groups(self) -> int:
        """How many ``[[groups]]`` there are."""
        return sum(name.startswith("groups[") for name in self.sections)

    def get(self, section: str, key: str, otherwise: str = "") -> str:
        """A word that is given, or was completed."""
        return str(self.sections.get(section, {}).get(key, otherwise))

    def complete(self, section: str, keys: Mapping[str, Value], of: str = "") -> None:
        """Adds what a section leaves open.

        Args:
            of: whose values these are, for the message.

        Raises:
            ValueError: the section has another value.
        """
        there = self.sections.setdefault(section, {})
        for key, value in keys.items():
            if not _same(there.setdefault(key, value), value):
                raise ValueError(
                    f"{key}={value!r}{of} contradicts {section}.{key} = {there[key]!r} of {self.source}: say it in one "
                    "place, or the same in both"
                )

    def text(self) -> str:
        """All of it as JSON, which has finite numbers only."""
        tables: dict[str, Any] = {}
        for name, keys in self.sections.items():
            for key, value in keys.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{name}.{key} = {value} of {self.source}: must be a finite number")
            if name.startswith("groups["):
                tables.setdefault("groups", []).append(keys)
            elif keys:
                tables[name] = keys
        return json.dumps(tables, ensure_ascii=False, default=str)  # dates of TOML, and paths


def _group(number: int) -> str:
    """The section of one of the torch optimizer's groups."""
    return f"groups[{number - 1}]" if number else "optimizer"


def _table(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Its values as Python's own: numbers of NumPy and torch are not."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in keys.items()}


def _same(one: Any, other: Any) -> bool:
    # 1 and 1.0 are one number, and "1024" is one, too, where a key takes words and numbers (gate.loss_scale).
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return bool(one == other)


def read(job: JobArgument) -> Given:
    """Reads the user's configuration of the job: the path of a file, or sections as dicts.

    Raises:
        ValueError: the file cannot be read, or is no TOML.
    """
    if job is None:
        return Given({}, "job=")
    if isinstance(job, Mapping):
        return Given(job, "job=")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    path = Path(job)
    try:
        return Given(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise ValueError(f"job={str(path)!r}: cannot read the job's file: {error.strerror}") from error
    except ValueError as error:  # of TOML, or UTF-8
        raise ValueError(f"job={str(path)!r}: is no TOML: {error}") from error


def named(name: str | None) -> Keys:
    """The keys of ``[job]``."""
    return {} if name is None else {"name": name}


def encoding(push: str, pull: str) -> Keys:
    """The keys of ``[encoding]`` that are not its defaults."""
    return {key: value for key, value in (("push", push), ("pull", pull)) if value != "fp32"}


def gate(max_grad_norm: float | None, loss_scale: str | float | None) -> Keys:
    """The keys of ``[gate]``."""
    keys: Keys = {}
    if max_grad_norm is not None:
        keys["clip_norm"] = min(float(max_grad_norm), NO_CLIPPING)
    if loss_scale is not None:
        keys["loss_scale"] = loss_scale if isinstance(loss_scale, str) else f"{float(loss_scale):.17g}"
    return keys


def _complete(given: Given, name: str, options: Sections) -> None:
    for section, keys in options.items():
        given.complete(section, keys)
    given.sections.setdefault("job", {}).setdefault("name", name)


def _job(given: Given) -> Job:
    scale = given.get("gate", "loss_scale")
    return Job(
        name=given.get("job", "name"),
        text=given.text(),
        optimizer=given.get("optimizer", "name", "sgd"),
        scheduled="schedule" in given.sections,
        loss_scale="" if scale == "none" else scale,
    )


def build_local(given: Given, name: str, outer: Keys | None, options: Sections) -> Job:
    """The job of replicas that take local steps.

    Args:
        name: of the job, if nothing else says one.
        outer: keys of the servers' SGD; None: those of ``given``, or else DiLoCo's.
        options: further sections; of them ``[job]``.

    Raises:
        ValueError: ``given`` and the other arguments contradict each other.
    """
    if outer is None:
        outer = {} if "optimizer" in given.sections else {"lr": 0.7, "momentum": 0.9, "nesterov": True}
    _complete(given, name, {"optimizer": {"name": "sgd", **outer}, **options})
    return _job(given)


def build(given: Given, name: str, formula: Formula, options: Sections) -> Job:
    """The job of a torch optimizer.

    Args:
        given: what the user says of the job. Nothing that is in it is changed.
        name: of the job, if nothing else says one.
        formula: of the torch optimizer.
        options: further sections; of them ``[job]``.

    Raises:
        ValueError: ``given`` and the options, or the optimizer, contradict each other.
    """
    _complete(given, name, options)
    named = given.get("optimizer", "name", formula.name)
    if named not in (formula.name, MEAN):
        raise ValueError(
            f"{given.source} has optimizer.name = {named!r}, but the torch optimizer is the servers' "
            f"{formula.name!r}: remove [optimizer] from it, or make the optimizer that it names"
        )
    given.complete("optimizer", {"name": named})
    if named == MEAN and given.get("job", "mode", "sync") == "sync":
        # The parameters are the ranks' alone: without their kept state no rank can continue.
        given.complete("membership", {"on_state_lost": given.get("membership", "on_state_lost", "rewind")})
    groups = [] if named == MEAN else formula.groups
    wanted = max(0, len(groups) - 1)
    if given.groups not in (0, wanted):
        raise ValueError(
            f"{given.source} has [optimizer] and {given.groups} [[groups]], but the torch optimizer has "
            f"{len(formula.groups)} parameter groups: give {wanted} [[groups]], or none to have them made"
        )
    # Rates go with the gradients: a program that is started again with other ones continues the same job.
    unsaid = {"lr"} if "schedule" not in given.sections else set()
    for number, keys in enumerate(groups):
        there = given.sections.get(_group(number), {})
        said = {
            key: value
            for key, value in keys.items()
            if key in there
            or (key not in unsaid and (number == 0 or key == "weight_decay" or groups[0].get(key) != value))
        }
        given.complete(_group(number), said, of=f" of the torch optimizer's group {number}")
    return _job(given)
