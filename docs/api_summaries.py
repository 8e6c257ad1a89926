"""A Griffe extension for the lists of methods, which show the first line of a docstring: the first
sentence becomes this line.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SENTENCE = re.compile(r"(?<=[a-z`)*]\.) (?=[A-Z`])")


class FirstSentences(griffe.Extension):
    """Puts the first sentence of a function's docstring on one line."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite the docstring; its rendered text stays the same."""
        if func.docstring is not None:
            first, gap, rest = func.docstring.value.partition("\n\n")
            line = SENTENCE.sub("\n", " ".join(first.split()), count=1)
            func.docstring.value = f"{line}{gap}{rest}"
