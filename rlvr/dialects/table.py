"""All dialects by name, and detection of the dialect of a chat template."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr.dialects.dialect import Dialect
from rlvr.dialects.fenced import Fenced
from rlvr.dialects.gemma import FunctionGemma, Gemma, Pythonic
from rlvr.dialects.harmony import Harmony
from rlvr.dialects.hermes import Hermes
from rlvr.dialects.line import Line
from rlvr.dialects.llama import Llama
from rlvr.dialects.mistral import Mistral, MistralList
from rlvr.dialects.sections import MARKS, Sections
from rlvr.dialects.tagged import Dsml, Glm, QwenXml
from rlvr.errors import NotFound, suggest

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Harmony(),
        Gemma(),
        FunctionGemma(),
        Dsml(),
        *map(Sections, MARKS),
        Pythonic(),
        Mistral(),
        MistralList(),
        Glm(),
        QwenXml(),
        Hermes(),
        Llama(),
        Fenced(),
        Line(),
    )
}
"""All dialects by name, in the order in which a template is matched: specific before general."""


def get(name: str) -> Dialect:
    """Return the dialect of a name.

    >>> get("glm").about
    'GLM-4.5 and later: <arg_key> and <arg_value> tags, values without types'
    """
    if name not in DIALECTS:
        raise NotFound(f"there is no dialect {name!r}; {suggest(name, DIALECTS)}")
    return DIALECTS[name]


def detect(template: str) -> Dialect | None:
    """Detect the dialect of a chat template; None for a template without tools.

    >>> detect("{{ '<tool_call>' }} {{ '<arg_key>' }}").name
    'glm'
    """
    return next((d for d in DIALECTS.values() if any(all(piece in template for piece in sign) for sign in d.signs)), None)
