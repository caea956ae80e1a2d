"""What errors and warnings say, in the words of the command line: ``invalid="skip"`` is an option of Python's.

Responsible for which option of which command stands for a parameter. Prints nothing.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

COMMANDS: dict[str, Any] = {}  # by name; `main` fills it
_FITS = ("fit", "plan")
COLUMN_FLAGS = ("columns", "exclude", "id_column", "categories", "categories_unseen", "dates", "genes", "feature_names")
_PARAMETERS = {"seed": "random_state", "threads": "executor"}  # what Python calls some options
_SECTIONS = dict.fromkeys(_FITS, ("estimator", "kernel", "data", "text"))
_ROWS = ("data", "text")  # sections that all other commands take
_PHRASES = (
    ("overwrite='any'", "--force"), ("pass overwrite", "pass --overwrite"),
    ("or start anew", "or begin anew with --restart"),
)  # fmt: skip
_YAML = {"None": "null", "True": "true", "False": "false"}
_OF = {"FeatureHashing": "text", "SketchOptions": "estimator"}  # sections that stand for their arguments
# a parameter with its value, which a message may leave to the reader
_GIVEN = re.compile(
    rf"""(?:({"|".join(_OF)})\()?(?<![\w./-])([a-z]\w*)=("[^"]*"|'[^']*'|\[[^\]]*\]|[\w.+-]*\w|)(?(1)\))"""
)
_NAMED = re.compile(r"(?<![\w./=-])[a-z]+_[a-z_]+(?![\w./=(-])")


def in_words_of(command: str, text: str) -> str:
    """A message with the options and keys that a command has for the parameters in it.

    `command`: ``fit``.

    Examples
    --------
    >>> from streamkm.cli.main import main  # it fills `COMMANDS`
    >>> in_words_of("fit", 'NaN in row 7; pass invalid="skip" to leave such rows out')
    'NaN in row 7; pass --invalid skip to leave such rows out'
    >>> in_words_of("sketch", 'NaN in row 7; pass invalid="skip" to leave such rows out')
    'NaN in row 7; pass --invalid skip to leave such rows out'
    """
    from streamkm.cli.schema import SECTIONS

    options, sections = _options(command), reversed(_SECTIONS.get(command, _ROWS))  # of equal keys the first section's
    keys = {name: f"{section}.{name}" for section in sections for name in SECTIONS[section].model_fields}
    keys |= {"fit_on": "kernel.fit_on"} if command in _FITS else {}  # a sketch's is in `_OF`

    def given(found: re.Match[str]) -> str:
        of, name, value = found.groups()
        value = _YAML.get(value, value.strip("\"'"))
        if name in options and not of:
            value = re.sub("[]\\['\" ]", "", value) if value.startswith("[") else value  # a list of names
            opens = found.string[found.end() :].startswith("{")  # steps with their columns
            return f"{options[name]} {shlex.quote(value) if value else ''}" if value or opens else options[name]
        value = f'"{value}"' if "\\" in value else value  # YAML reads it in double quotes alone
        key = f"{_OF[of]}.{name}" if of else keys.get(name)
        return found.group() if key is None else f"--set {shlex.quote(f'{key}={value}')}"

    for python, words in _PHRASES:
        text = text.replace(python, words)
    return _NAMED.sub(lambda found: options.get(found[0]) or keys.get(found[0], found[0]), _GIVEN.sub(given, text))


def _options(command: str) -> dict[str, str]:
    """Options of a command that take a value, by the names of Python's parameters."""
    known = [each for each in getattr(COMMANDS.get(command), "params", ()) if each.param_type_name == "option"]
    found = {str(each.name): each.opts[0] for each in known if not getattr(each, "is_flag", False)}
    return found | {python: found[name] for name, python in _PARAMETERS.items() if name in found}
