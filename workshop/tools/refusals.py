"""Which trainer trains which row, and why not: `python -m workshop.tools.refusals`.

Nothing is listed by hand: every trainer is handed every row, and what it says is the table.
"""

from collections.abc import Callable, Iterable

from pydantic import ValidationError

from rlbook.objectives import METHODS, Method
from rlbook.objectives.field_rows import FIELD
from rlbook.scale import nano
from rlbook.scale.config import ScaleConfig
from rlbook.training import RunConfig

Refuses = Callable[[Method], Iterable[str]]


def scale_refuses(method: Method) -> list[str]:
    """What `rlbook scale` says against a row, setting by setting."""
    return said(lambda: ScaleConfig(method=method))


def nano_refuses(method: Method) -> list[str]:
    """The same of `nano.py`, handed the settings that it knows."""
    settings: dict[str, dict[str, object]] = {}
    for name, value in nano.ONLY.items():
        section, field = name.split(".")
        settings.setdefault(section, {})[field] = value
    return scale_refuses(method) or said(lambda: nano.check(ScaleConfig(method=method, **settings)))


def said(build: Callable[[], object]) -> list[str]:
    """The errors of settings, one by one; none if they stand."""
    try:
        build()
    except ValidationError as error:
        return [one["msg"].removeprefix("Value error, ") for one in error.errors()]
    except ValueError as error:
        return [str(error)]
    return []


TRAINERS: dict[str, Refuses] = {
    "`training.loop`": lambda method: ["needs " + thing for thing in method.lacking(())],
    "`Trainer`": lambda method: said(lambda: RunConfig(method=method)),
    "`scale.nano`": nano_refuses,
    "`rlbook scale`": scale_refuses,
}


def table(methods: Iterable[Method]) -> str:
    """Markdown: a row per method, a column per trainer; reasons are numbered below."""
    reasons: dict[str, int] = {}
    rows = [["row", *TRAINERS], ["---"] * (1 + len(TRAINERS))]
    for method in methods:
        found = [list(refuses(method)) for refuses in TRAINERS.values()]
        bare = [[why.replace(f"method: {method.name} ", "") for why in cell] for cell in found]
        numbers = [[reasons.setdefault(why, len(reasons) + 1) for why in cell] for cell in bare]
        cells = ["no: " + ", ".join(map(str, some)) if some else "trains" for some in numbers]
        rows.append([f"`{method.name}`", *cells])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"{number}. {why}" for why, number in reasons.items())])


if __name__ == "__main__":
    print(table([*METHODS.values(), *FIELD.values()]))
