"""The packages that only some work needs: imported when it begins, or refused in one line that says what to install."""

from __future__ import annotations

import importlib
from typing import Any

from velox_eval.errors import ConfigError, VeloxEvalError

# What an installed package whose parts do not fit together raises while it is imported.
_BROKEN = (
    *(ImportError, AttributeError, NameError, TypeError, ValueError, LookupError),
    *(RuntimeError, SystemError, SyntaxError, OSError, Warning),
)


def required(module: str, extra: str, purpose: str, error: type[VeloxEvalError] = ConfigError) -> Any:
    """Returns `module`, imported; `purpose` needs it, and `pip install velox-eval[extra]` brings it.

    Raises `error` for a package that is missing, lacks what it needs itself, or cannot be imported for another reason.
    """
    package = module.partition(".")[0]
    install = f"'velox-eval[{extra}]'"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        name = missing.name or module
        lacks = "is not installed" if name == package else f"lacks {name}"
        raise error(f"{purpose} needs {package}, which {lacks}: pip install {install}") from missing
    except _BROKEN as broken:
        why = f"{type(broken).__name__}: {' '.join(str(broken).split())}"
        raise error(
            f"{purpose} needs {package}, which is installed and cannot be imported ({why}): "
            f"pip install --force-reinstall {install}"
        ) from broken
