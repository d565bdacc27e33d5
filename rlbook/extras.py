"""Libraries that not everybody needs: what to install where one is missing."""

import importlib.util


def require(extra: str, *libraries: str) -> None:
    """Raises `ImportError` naming the extra to install if one of the libraries is missing."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not found: pip install -e '.[{extra}]'")
