"""The user's reward function, looked at without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from launch.config import Job
from launch.finding import Finding, error

_REWARD_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_reward_function(job: Job, project: Path) -> Iterator[Finding]:
    """The function that verl will call is there and takes what verl gives it, by keyword, and needs nothing else.

    Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py, 0.6.1 workers/reward_manager/naive.py.
    """
    if job.reward.kind != "function":
        return
    if job.reward.function is None:
        yield error(
            "reward-function",
            "reward.kind=function needs a file, and reward.function is not set",
            "set reward.function to the path of a Python file",
        )
        return
    path, name = project / job.reward.function, job.reward.function_name
    if not path.is_file():
        return  # reported by check_files
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as broken:
        yield error("reward-function", f"reward.function: {path} is not Python: {broken}", "correct the file")
        return
    bound = [node for node, names in _bindings(tree.body) if name in names]
    imports_all = any("*" in names for _, names in _bindings(tree.body))
    if not bound and not imports_all:
        yield error("reward-function", f"{path} has no function {name!r}", "correct reward.function_name")
    # What is bound again, or on one of several ways only, may be another function.
    if len(bound) == 1 or (bound and bound[-1] in tree.body):
        last = bound[-1]
        if isinstance(last, _Function):
            yield from _check_signature(job, path, last)


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, set[str]]]:
    """Statements of a module that bind names, with these names, in order; `*` for a whole module's."""
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            yield node, {node.name}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node, {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            yield node, {name.id for name in names if isinstance(name.ctx, ast.Store)}
        else:
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.ExceptHandler | ast.match_case):
                    yield from _bindings(inner.body)
                elif isinstance(inner, ast.stmt):
                    yield from _bindings([inner])


def _check_signature(job: Job, path: Path, node: _Function) -> Iterator[Finding]:
    taken, name = node.args, node.name
    remedy = f"write def {name}(data_source, solution_str, ground_truth, extra_info=None, **kwargs)"
    named = {argument.arg for argument in (*taken.args, *taken.kwonlyargs)}
    missing = [word for word in _REWARD_ARGUMENTS if word not in named]
    if missing and taken.kwarg is None:
        told = f"{path}: {name}() takes no {', '.join(missing)}, which verl gives by keyword"
        yield error("reward-function", told, remedy)
    if node.decorator_list:
        return  # which may give what is asked for
    positional = [*taken.posonlyargs, *taken.args]
    required = positional[: len(positional) - len(taken.defaults)]
    only = [argument.arg for argument in required if argument in taken.posonlyargs]
    if only:
        told = f"{path}: {name}() takes {', '.join(only)} by position only; verl gives everything by keyword"
        yield error("reward-function", told, remedy)
    keywords = [
        argument for argument, value in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if value is None
    ]
    needed = [argument.arg for argument in (*required, *keywords) if argument not in taken.posonlyargs]
    unknown = [word for word in needed if word not in _REWARD_ARGUMENTS and not _is_given(job, word)]
    if unknown:
        told = f"{path}: {name}() needs {', '.join(unknown)}, which verl does not give"
        yield error("reward-function", told, f"give a default; {remedy}")


def _is_given(job: Job, word: str) -> bool:
    """Whether a raw override gives the argument: reward_kwargs of verl's custom_reward_function."""
    return any("reward_kwargs" in text and word in text for text in job.overrides)
