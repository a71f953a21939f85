"""Spares processes of tests the import of torch's compiler, half of the time in which torch starts.

torch imports `torch._dynamo` when a program makes its first optimizer, only to keep the optimizer's methods from being
compiled. A program that compiles imports the compiler by itself. Python imports this module at its start if this folder
is in PYTHONPATH.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME = "torch._compile"


def _not_compiled(real: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator of torch, which imports the compiler no earlier than other code does."""

    def disable(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
        if fn is None:
            return functools.partial(disable, recursive=recursive)
        slow = real(fn, recursive)

        @functools.wraps(fn)
        def called(*values: Any, **named: Any) -> Any:
            return (slow if "torch._dynamo" in sys.modules else fn)(*values, **named)

        return called

    return disable


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads `torch._compile` as usual, and changes its decorator."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if hasattr(module, "_disable_dynamo"):
            module._disable_dynamo = _not_compiled(module._disable_dynamo)


sys.meta_path.insert(0, _Finder())
