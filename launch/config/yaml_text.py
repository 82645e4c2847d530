"""YAML as a job is written in it: version 1.2 scalars, no key twice, a bounded size."""

import re
from typing import Any

import yaml

from launch.config.base import WrittenFloat, WrittenInt
from launch.tokens import hide

# A few lines of aliases of aliases stand for billions of nodes; a job has some hundred.
_MOST_NODES = 100_000
_MOST_DEPTH = 50


class YamlError(ValueError):
    """The text is no YAML that a job can be written in. The message quotes no line of it."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars, and no key twice.

    YAML 1.1 reads 12:00:00 as 43200, 1e-6 as text and `no` as false; a key given twice loses its first value.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[yaml.Node, int] = {}
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, counting what it stands for: an alias counts as much as what it repeats."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"nested deeper than {_MOST_DEPTH} levels", mark)
        an_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return node
        if an_alias and node not in self._sizes:
            raise yaml.MarkedYAMLError(None, None, "an alias inside of what it repeats", mark)
        if not an_alias:
            self._sizes[node] = 1 + sum(self._sizes[child] for child in _children(node))
            _refuse_double_keys(self, node)
        if self._sizes[node] > _MOST_NODES:
            raise yaml.MarkedYAMLError(None, None, f"its aliases stand for more than {_MOST_NODES} values", mark)
        return node

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        """YAML 1.1 reads 010 as 8."""
        number = WrittenInt(str(node.value), 10)
        number.written = str(node.value)
        return number

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """A float of YAML 1.2's core schema."""
        number = WrittenFloat(str(node.value))
        number.written = str(node.value)
        return number


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _refuse_double_keys(loader: _Loader, node: yaml.Node) -> None:
    """Seen while composing: a merge (<<) that is spread out later may repeat keys, and the mapping's own count."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            continue
        merge = key_node.tag == "tag:yaml.org,2002:merge"
        key = "<<" if merge else loader.construct_object(key_node, deep=True)
        if key in seen:
            what = "the key << is given twice; write <<: [*a, *b]" if merge else f"the key {key!r} is given twice"
            raise yaml.MarkedYAMLError(None, None, what, key_node.start_mark)
        seen.add(key)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in {"null", "merge"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# The core schema of YAML 1.2.2, section 10.3.2.
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_decimal)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def _apart(value: Any) -> Any:
    """A copy in which an alias shares nothing with what it repeats: --set changes one place."""
    if isinstance(value, dict):
        return {name: _apart(one) for name, one in value.items()}
    return [_apart(one) for one in value] if isinstance(value, list) else value


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        YamlError: with the line and the column. PyYAML's own message would show the text, and it may be a secret.
    """
    try:
        return _apart(yaml.load(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise YamlError(hide(f"{place}{error.problem or error.context}")) from error
    except yaml.reader.ReaderError as error:
        raise YamlError(f"character {error.position + 1}: {error.reason}") from error
    # PyYAML lets the errors of its constructors and its recursion through.
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        told = "a value does not fit its tag" if not isinstance(error, RecursionError) else "nested too deeply"
        raise YamlError(told) from error
