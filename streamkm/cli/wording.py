"""What errors and warnings say, in the words of the command line: ``invalid="skip"`` is an option of Python's.

Responsible for which option of which command stands for a parameter. Prints nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

_FITS = ("fit", "plan", "cluster")
# parameters that commands have options for, "{}" for the value; all others are keys of the configuration
_OPTIONS: dict[str, dict[str, str]] = {
    **{
        command: {"n_clusters": "-k {}", "invalid": "--invalid {}",
                  "random_state": "--seed {}",
                  "image_shape": "--image-shape {}", "fit_on": "--set kernel.fit_on={}"}
        for command in _FITS
    },
    "report": {"image_shape": "--image-shape {}"},
    "sketch": {
        "n_components": "-m {}", "seed": "--seed {}", "metric": "--metric {}", "sketch": "--sketch {}",
        "invalid": "--invalid {}",
    },
    "dedupe": {
        "n_clusters": "-k {}", "invalid": "--invalid {}", "random_state": "--seed {}",
        "threshold": "--threshold {}", "keep": "--keep {}",
    },
    "update": {"n_clusters": "-k {}"},
    "append": {"first_feature": "--first-feature {}", "invalid": "--invalid {}"},
    "sweep": {
        "n_clusters": "-k {}", "random_state": "--random-state {}", "metric": "--metric {}",
        "invalid": "--invalid {}",
    },
}  # fmt: skip
_COLUMNS = {
    name: f"--{name.replace('_', '-')} {{}}"
    for name in ("columns", "exclude", "id_column", "categories", "categories_unseen", "dates", "genes")
}
_THREADS = {"executor": "--threads {}"}
_WITH_THREADS = (*_FITS, "assign", "update", "drift", "sketch", "append", "dedupe", "sweep")
_WITH_COLUMNS = ("fit", "plan", "inspect", "assign", "update", "drift", "sketch", "dedupe", "sweep")
_MEMORY = {"memory_limit": "--memory-limit {}"}
_WITH_MEMORY = (*_FITS, "update", "drift", "sketch", "append", "dedupe", "sweep")
_SECTIONS = dict.fromkeys(_FITS, ("estimator", "kernel", "data", "text"))
_ROWS = ("data", "text")  # sections that all other commands take
_PHRASES = (
    ("overwrite='any'", "--force"), ("pass overwrite", "pass --overwrite"),
    ("or start anew", "or begin anew with --restart"),
)  # fmt: skip
_YAML = {"None": "null", "True": "true", "False": "false"}
_OF = {"FeatureHashing": "text", "SketchOptions": "estimator"}  # sections that stand for their arguments
# a parameter with its value, which a message may leave to the reader
_GIVEN = re.compile(rf"""(?:({"|".join(_OF)})\()?(?<![\w./-])([a-z]\w*)=("[^"]*"|'[^']*'|[\w.+-]*\w|)(?(1)\))""")
_NAMED = re.compile(r"(?<![\w./=-])[a-z]+_[a-z_]+(?![\w./=(-])")


def in_words_of(command: str, text: str) -> str:
    """A message with the options and keys that a command has for the parameters in it.

    `command`: ``fit``.

    Examples
    --------
    >>> in_words_of("fit", 'NaN in row 7; pass invalid="skip" to leave such rows out')
    'NaN in row 7; pass --invalid skip to leave such rows out'
    >>> in_words_of("sketch", 'NaN in row 7; pass invalid="skip" to leave such rows out')
    'NaN in row 7; pass --invalid skip to leave such rows out'
    """
    options = _OPTIONS.get(command, {}) | (_COLUMNS if command in _WITH_COLUMNS else {})
    options |= _MEMORY if command in _WITH_MEMORY else {}
    options |= _THREADS if command in _WITH_THREADS else {}
    keys = dict(_keys(command))

    def given(found: re.Match[str]) -> str:
        of, name, value = found.groups()
        value = _YAML.get(value, value.strip("\"'"))
        if name in options and not of:
            return options[name].format(shlex.quote(value) if value else "").rstrip()
        if "\\" in value:  # YAML reads it in double quotes alone
            value = f'"{value}"'
        key = f"{_OF[of]}.{name}" if of else keys.get(name)
        return found.group() if key is None else f"--set {shlex.quote(f'{key}={value}')}"

    def named(found: re.Match[str]) -> str:
        name = found.group()
        return options[name].format("").rstrip() if name in options else keys.get(name, name)

    for python, words in _PHRASES:
        text = text.replace(python, words)
    return _NAMED.sub(named, _GIVEN.sub(given, text))


def _keys(command: str) -> Iterator[tuple[str, str]]:
    """Every parameter that is a key of a section that the command takes; of equal names the first section's."""
    from streamkm.cli.schema import SECTIONS

    for section in reversed(_SECTIONS.get(command, _ROWS)):
        for name in SECTIONS[section].model_fields:
            yield name, f"{section}.{name}"
