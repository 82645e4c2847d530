"""Change a module right after its first import, in processes that may never import it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[Any], object]


class _AfterImport(MetaPathFinder):
    """Finds one module as the other finders do, once, and has `hook` called when it has been executed."""

    def __init__(self, name: str, hook: Hook) -> None:
        self._name = name
        self._hook = hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)  # asks the others
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return None
        execute = spec.loader.exec_module

        def execute_then_change(module: ModuleType) -> None:
            execute(module)
            self._hook(module)

        spec.loader.exec_module = execute_then_change  # type: ignore[method-assign]
        return spec


def after_import(name: str, hook: Hook) -> None:
    """Call `hook(module)` as soon as the module `name` is imported; at once if it already is."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        hook(loaded)
    else:
        sys.meta_path.insert(0, _AfterImport(name, hook))
