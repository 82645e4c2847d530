"""Change a module right after its first import, in processes that may never import it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _AfterImport(MetaPathFinder):
    """Runs functions right after a module's first import, before anyone can copy a name out of it.

    `from module import name` binds a name for good, so a patch that comes later misses those who did that.
    """

    def __init__(self) -> None:
        self.pending: dict[str, list[Callable[[Any], object]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hooks = self.pending.pop(fullname, None)
        if hooks is None:
            return None
        spec = importlib.util.find_spec(fullname)  # asks the other finders: the entry above is gone
        if spec is None or spec.loader is None:
            self.pending[fullname] = hooks
            return None
        execute = spec.loader.exec_module

        def execute_then_patch(module: ModuleType) -> None:
            execute(module)
            for hook in hooks:
                hook(module)

        spec.loader.exec_module = execute_then_patch  # type: ignore[method-assign]
        return spec


_FINDER = _AfterImport()


def after_import(module: str, hook: Callable[[Any], object]) -> None:
    """Call `hook(module)` as soon as `module` is imported; at once if it already is."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        hook(loaded)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.pending.setdefault(module, []).append(hook)
