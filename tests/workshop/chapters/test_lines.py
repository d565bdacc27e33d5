"""The lines that readers write: every likely mistake gets its own hint, and the solution passes."""

import importlib
import inspect

import pytest

from workshop.shared.checks import check_lines

MODULES = [importlib.import_module(f"workshop.ch{n:02d}.checks") for n in range(1, 19)]
OF_LINES = [
    (module, name)
    for module in MODULES
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and function.__module__ == module.__name__
    and "check_lines(" in inspect.getsource(function)
]


@pytest.fixture(params=OF_LINES, ids=lambda of: f"{of[0].__name__[9:13]}-{of[1]}")
def lines(request, monkeypatch):
    """What a check hands to `check_lines`: reference, twins and the rest, and the check itself."""
    module, name = request.param
    handed = {}

    def keep(mine, reference, twins, *rest, **how):
        handed.update(reference=reference, twins=twins)
        return check_lines(mine, reference, twins, *rest, **how)

    monkeypatch.setattr(module, "check_lines", keep)
    check = getattr(module, name)
    check(lambda *_: ...)
    return check, handed["reference"], handed["twins"]


def test_the_stub_is_not_attempted(lines, capsys):
    check, *_ = lines
    assert check(lambda *_: ...) is False
    assert "not attempted" in capsys.readouterr().out


def test_the_solution_is_right(lines, capsys):
    check, reference, _ = lines
    assert check(reference) is True
    assert "right" in capsys.readouterr().out


def test_every_mistake_gets_its_own_hint(lines, capsys):
    check, _, twins = lines
    assert twins
    for hint, twin in twins.items():
        capsys.readouterr()
        assert check(twin) is False
        assert hint in capsys.readouterr().out
