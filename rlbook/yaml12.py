"""YAML as its version 1.2 means it: `1e-5` is a number; `yes`, `off` and `12:30` are words."""

import re
from typing import Any, ClassVar

import yaml

SCALARS = {  # of the core schema
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|"
    r"\.(?:nan|NaN|NAN)",
}


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's, with other rules for what a plain scalar is."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}

    def construct_yaml_int(self, node: Any) -> int:
        """Decimal, with or without zeros in front, unless it says 0o or 0x."""
        text = self.construct_scalar(node)
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


for kind, pattern in SCALARS.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{pattern})$"), None)
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)


def read_yaml(text: str, where: str = "this") -> Any:
    """What a text of YAML or JSON means; `ValueError` in one line for what is neither."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        said = (
            str(getattr(error, "problem", None) or error).replace("\t", "tab").replace("\\t", "tab")
        )
        raise ValueError(f"{where} is not YAML: {said}{place}") from None
