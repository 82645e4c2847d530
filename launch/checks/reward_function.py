"""The user's reward function, looked at without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from launch.config import Job
from launch.finding import Finding, error

_REWARD_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def check_reward_function(job: Job, project: Path) -> Iterator[Finding]:
    """The function that verl will call is there and takes what verl gives it, by keyword.

    Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py, 0.6.1 workers/reward_manager/naive.py.
    """
    if job.reward.kind != "function" or not (project / str(job.reward.function)).is_file():
        return  # a missing file is reported by check_files
    path, name = project / str(job.reward.function), job.reward.function_name
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as broken:
        yield error("reward-function", f"reward.function: {path} is not Python: {broken}", "correct the file")
        return
    found = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names |= {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if not found and name not in names:
        yield error("reward-function", f"{path} has no function {name!r}", "correct reward.function_name")
    for node in found[-1:]:
        taken = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        missing = [word for word in _REWARD_ARGUMENTS if word not in taken]
        if missing and node.args.kwarg is None:
            yield error(
                "reward-function",
                f"{path}: {name}() takes no {', '.join(missing)}, which verl gives by keyword",
                f"write def {name}(data_source, solution_str, ground_truth, extra_info=None, **kwargs)",
            )
