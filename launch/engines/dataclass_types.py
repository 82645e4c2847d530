"""The fields and types of verl's configuration classes, read from its source without importing it.

verl turns a section with `_target_` into a dataclass (utils/config.py, omega_conf_to_dataclass): an unknown field
ends the job there, a wrong type passes and ends it somewhere later.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NUMBERS = {"int": (int,), "float": (int, float), "Number": (int, float), "complex": (int, float)}
_LISTS = {"list", "List", "tuple", "Tuple", "Sequence", "Iterable", "set", "Set"}
_DICTS = {"dict", "Dict", "Mapping", "MutableMapping"}
_OPEN = _DICTS | {"Any", "object", "DictConfig"}


@dataclass(frozen=True)
class Field:
    """A field of a dataclass: its annotation, whether it defaults to None, and where its names are looked up."""

    annotation: ast.expr
    none_by_default: bool
    module: str

    @property
    def type_text(self) -> str:
        """The annotation as it is written."""
        return ast.unparse(self.annotation)

    def accepts(self, value: object) -> bool:
        """Whether a value of the configuration may stand in the field. Types that are not plain accept all."""
        return (value is None and self.none_by_default) or _accepts(self.annotation, value)

    @property
    def free(self) -> bool:
        """Whether the field is a dict that takes any key."""
        return any(name in _OPEN for name in _type_names(self.annotation))


@dataclass
class ConfigClass:
    """A dataclass with the fields that it inherits, and the __post_init__ of its bases and its own."""

    name: str
    fields: dict[str, Field] = field(default_factory=dict)
    checks: list[ast.FunctionDef] = field(default_factory=list)
    constants: dict[str, ast.expr] = field(default_factory=dict)


class ClassReader:
    """Finds configuration classes by their dotted name below `root`, the folder that holds the package."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}
        self._classes: dict[str, ConfigClass | None] = {}

    def read(self, dotted: str) -> ConfigClass | None:
        """The class that `_target_: dotted` names; None when it is not a dataclass of this package."""
        if dotted not in self._classes:
            self._classes[dotted] = None  # a class that inherits from itself ends here
            module, _, name = dotted.rpartition(".")
            self._classes[dotted] = self._find(module, name, seen=set())
        return self._classes[dotted]

    def of_field(self, found: Field) -> ConfigClass | None:
        """The dataclass that a field is annotated with, if it is one."""
        for name in _type_names(found.annotation):
            known = self._find(found.module, name, seen=set())
            if known is not None:
                return known
        return None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            self._trees[module] = None
            path = self._root.joinpath(*module.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if module and file.is_file():
                    self._trees[module] = ast.parse(file.read_bytes())
                    break
        return self._trees[module]

    def _find(self, module: str, name: str, seen: set[tuple[str, str]]) -> ConfigClass | None:
        """Look for a class in a module, and where the module imports it from."""
        tree = self._tree(module)
        if tree is None or (module, name) in seen:
            return None
        seen.add((module, name))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self._build(module, node, seen)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name != "*" and (alias.asname or alias.name) != name:
                        continue
                    found = self._find(
                        self._imported(module, node), name if alias.name == "*" else alias.name, seen
                    )
                    if found is not None:
                        return found
        return None

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = self._root.joinpath(*module.split("."), "__init__.py").is_file()
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _build(self, module: str, node: ast.ClassDef, seen: set[tuple[str, str]]) -> ConfigClass | None:
        built = ConfigClass(node.name)
        inherited = False
        for base in node.bases:
            if isinstance(base, ast.Name) and (known := self._find(module, base.id, seen)) is not None:
                built.fields |= known.fields
                built.checks += known.checks
                built.constants |= known.constants
                inherited = True
        if not inherited and not any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
            return None
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                none = isinstance(part.value, ast.Constant) and part.value.value is None
                built.fields[part.target.id] = Field(part.annotation, none, module)
            elif isinstance(part, ast.FunctionDef) and part.name == "__post_init__":
                built.checks.append(part)
        tree = self._tree(module)
        built.constants |= dict(_constants(tree.body if tree is not None else []))
        return built


def _plain_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _unquoted(node: ast.expr) -> ast.expr:
    """An annotation that is written as a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return ast.Name("Any")
    return node


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """The types of a union, None among them."""
    node = _unquoted(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    if isinstance(node, ast.Subscript) and _plain_name(node.value) in {"Optional", "Union"}:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        none: list[ast.expr] = [ast.Constant(None)] if _plain_name(node.value) == "Optional" else []
        return [part for one in inner for part in _alternatives(one)] + none
    return [node]


def _type_names(node: ast.expr) -> Iterator[str]:
    for part in _alternatives(node):
        yield _plain_name(part.value if isinstance(part, ast.Subscript) else part)


def _accepts(node: ast.expr, value: object) -> bool:
    return any(_accepts_one(part, value) for part in _alternatives(node))


def _accepts_one(node: ast.expr, value: object) -> bool:
    if isinstance(node, ast.Constant):  # None, or the dots of tuple[int, ...]
        return node.value is None and value is None
    if isinstance(node, ast.Subscript):
        outer = _plain_name(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            return any(isinstance(one, ast.Constant) and one.value == value for one in inner)
        if outer in _LISTS and isinstance(value, list):
            return all(any(_accepts(one, item) for one in inner) for item in value)
        return _accepts_name(outer, value)
    return _accepts_name(_plain_name(node), value)


def _accepts_name(name: str, value: object) -> bool:
    if name in _NUMBERS:
        return isinstance(value, _NUMBERS[name]) and not isinstance(value, bool)
    if name in {"bool", "str"}:
        return isinstance(value, bool if name == "bool" else str)
    if name in _LISTS:
        return isinstance(value, list)
    if name in _DICTS:
        return isinstance(value, dict)
    return True


def _constants(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """(name, expression) of a module's plain assignments."""
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value
