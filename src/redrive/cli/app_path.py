"""From `module:attribute` to the application that it names."""

import importlib
import sys
import traceback
from pathlib import Path

from redrive.app import Redrive
from redrive.core.failure import describe_error
from redrive.errors import RedriveError, SettingsError


def load_app(path: str) -> Redrive:
    """The application that `module:attribute` names; the working folder can be imported from."""
    module_name, _, attribute = path.partition(":")
    attribute = attribute or "app"
    if not module_name or any(not part.isidentifier() for part in module_name.split(".")):
        raise SettingsError(f"{path!r} is not an application path: write module:app, such as shop.tasks:app")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _imported(module_name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        there = [name for name, value in vars(module).items() if isinstance(value, Redrive)]
        hint = f"it has {', '.join(f'{module_name}:{name}' for name in there)}" if there else "it has no Redrive"
        raise SettingsError(f"module {module_name!r} has no {attribute!r}: {hint}") from None
    if not isinstance(found, Redrive):
        raise SettingsError(
            f"{module_name}:{attribute} must be a redrive.Redrive application, not {type(found).__name__}"
        )
    return found


def _imported(name: str) -> object:
    try:
        return importlib.import_module(name)
    except RedriveError:
        raise
    except ModuleNotFoundError as error:
        # The module itself, or the package it stands in; anything else is missing inside it.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"there is no module {name!r}: run redrive in the folder that holds it, or install its package "
                f"(looked in {Path.cwd()} and the Python path)"
            ) from error
        raise SettingsError(_failed(name, error)) from error
    except Exception as error:
        raise SettingsError(_failed(name, error)) from error


def _failed(name: str, error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"importing {name!r} failed at {last.filename}:{last.lineno}: {describe_error(error)}"
