"""What a configuration class of verl refuses in __post_init__, evaluated on plain values without running it.

Only conditions of fields, constants, comparisons and arithmetic are understood; whatever else a condition holds
makes it unknown, and an unknown condition refuses nothing.
"""

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """A condition under which verl raises, the fields in it, and what a field may be where verl lists it."""

    condition: str
    fields: tuple[str, ...]
    allowed: tuple[object, ...] | None


class _Unknown(Exception):
    """A part of a condition that is not known here."""


class _Ended(Exception):
    """The function has raised."""


@dataclass
class _State:
    values: dict[str, Any]
    names: dict[str, ast.expr]


def refusals(
    functions: list[ast.FunctionDef], constants: dict[str, ast.expr], values: dict[str, Any]
) -> list[Refusal]:
    """What the functions, the __post_init__ of a class after those of its bases, refuse of a section's values.

    Args:
        functions: Parsed functions of one argument, self.
        constants: Names of the modules that are bound to a literal.
        values: The fields that are known; a field that is missing makes its conditions unknown.
    """
    state = _State(dict(values), dict(constants))
    found: list[Refusal] = []
    for function in functions:
        try:
            for refusal in _run(function.body, state, ()):
                found.append(refusal)
        except _Ended:
            break
    return found


def _run(statements: list[ast.stmt], state: _State, path: tuple[ast.expr, ...]) -> Iterator[Refusal]:
    for statement in statements:
        if isinstance(statement, ast.Assert):
            if _truth(statement.test, state) is False:
                yield _refusal((*path, _negated(statement.test)), state)
                raise _Ended
        elif isinstance(statement, ast.Raise):
            if path:
                yield _refusal(path, state)
            raise _Ended
        elif isinstance(statement, ast.If):
            truth = _truth(statement.test, state)
            if truth is None:
                _forget(statement, state)
            elif truth:
                yield from _run(statement.body, state, (*path, statement.test))
            else:
                yield from _run(statement.orelse, state, path)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            state.names[statement.targets[0].id] = statement.value
        else:
            _forget(statement, state)


def _forget(statement: ast.stmt, state: _State) -> None:
    """Fields that a statement may change are not known any more."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            state.values.pop(node.attr, None)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            state.names.pop(node.id, None)
        elif isinstance(node, ast.Call) and "setattr" in ast.unparse(node.func):
            if len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                state.values.pop(str(node.args[1].value), None)
            else:
                state.values.clear()


def _refusal(path: tuple[ast.expr, ...], state: _State) -> Refusal:
    fields = [name for test in path for name in _fields(test)]
    last = path[-1]
    test = last.operand if isinstance(last, ast.UnaryOp) else last  # what an assert asks for
    allowed = None
    if len(path) == 1 and isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
        allowed = tuple(_value(test.comparators[0], state))
    condition = path[0] if len(path) == 1 else ast.BoolOp(ast.And(), list(path))
    return Refusal(ast.unparse(condition), tuple(dict.fromkeys(fields)), allowed)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _fields(test: ast.expr) -> Iterator[str]:
    """Dotted names of the fields in a condition."""
    if isinstance(test, ast.Attribute):
        yield ast.unparse(test).removeprefix("self.")
        return
    for child in ast.iter_child_nodes(test):
        if isinstance(child, ast.expr):
            yield from _fields(child)


def _truth(test: ast.expr, state: _State) -> bool | None:
    try:
        return bool(_value(test, state))
    except (_Unknown, TypeError, ValueError, ArithmeticError, RecursionError):
        return None


def _value(node: ast.expr, state: _State) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in state.names:
        return _value(state.names[node.id], state)
    if isinstance(node, ast.Attribute):
        return _field_value(node, state)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_value(item, state) for item in node.elts]
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, state)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub):
            return -value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_value(node.left, state), _value(node.right, state))
    if isinstance(node, ast.BoolOp):
        return _junction(node, state)
    if isinstance(node, ast.Compare):
        values = [_value(part, state) for part in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(_COMPARE[type(op)](left, right) for op, left, right in pairs)
    raise _Unknown


def _field_value(node: ast.Attribute, state: _State) -> Any:
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        holder: Any = state.values
    else:
        holder = _value(node.value, state)
    if not isinstance(holder, dict) or node.attr not in holder:
        raise _Unknown
    return holder[node.attr]


def _junction(node: ast.BoolOp, state: _State) -> bool:
    """`and` and `or`; an unknown part counts only where the known ones do not decide."""
    truths = [_truth(part, state) for part in node.values]
    deciding = isinstance(node.op, ast.Or)
    if deciding in truths:
        return deciding
    if None in truths:
        raise _Unknown
    return not deciding
