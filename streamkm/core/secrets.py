"""URLs as they may be shown: without what stands in front of ``@`` and without the values of their parameters.

Responsible for what is told of a URL, wherever one stands in a text. Knows nothing of what a URL leads to.
"""

from __future__ import annotations

import re

MASK = "***"

# every pattern walks a text once: none begins again within what it has walked in vain
_URL = re.compile(r"(?<=[A-Za-z0-9+.-])://[^\s'\"<>]*[^\s'\"<>.,:;()\[\]{}]")
_USER = re.compile(r"(?<=://)[^/?#]*@")  # greedy: passwords may hold an @
# of one URL of a chain; what stands behind # or ; is one where it has values, else part of a name
_QUERY = re.compile(r"(?:\?|[#;](?=[^:/#;]*=)).*?(?=::|\Z)", re.DOTALL)
_VALUE = re.compile(r"(?P<name>[^?#&;=]+=)?(?P<value>[^?#&;]+)")


def masked(url: str) -> str:
    """Show a URL without its secrets: ``https://***@host/x.npy?token=***``."""
    return _QUERY.sub(lambda query: _VALUE.sub(rf"\g<name>{MASK}", query[0]), _USER.sub(f"{MASK}@", url))


def is_masked(url: str) -> bool:
    """Whether something was taken out of a URL, so that it leads nowhere."""
    return MASK in url


def without_secrets(text: str) -> str:
    """Give a text with every URL in it as `masked` shows it."""
    return _URL.sub(lambda found: masked(found[0]), text) if "://" in text else text
