"""All dialects by name, and detection of the dialect of a chat template."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr.chat.dialects.dialect import Dialect
from rlvr.chat.dialects.fenced import NamedFenceDialect
from rlvr.chat.dialects.gemma import FunctionGemmaDialect, GemmaDialect, PythonicDialect
from rlvr.chat.dialects.harmony import HarmonyDialect
from rlvr.chat.dialects.hermes import HermesDialect
from rlvr.chat.dialects.line import LineDialect
from rlvr.chat.dialects.llama import LlamaDialect
from rlvr.chat.dialects.mistral import MistralDialect, MistralListDialect
from rlvr.chat.dialects.sections import SECTION_MARKS, SectionDialect
from rlvr.chat.dialects.tagged import DsmlDialect, GlmDialect, QwenXmlDialect
from rlvr.errors import NotFound, format_suggestion

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        HarmonyDialect(),
        GemmaDialect(),
        FunctionGemmaDialect(),
        DsmlDialect(),
        *map(SectionDialect, SECTION_MARKS),
        PythonicDialect(),
        MistralDialect(),
        MistralListDialect(),
        GlmDialect(),
        QwenXmlDialect(),
        HermesDialect(),
        LlamaDialect(),
        NamedFenceDialect(),
        LineDialect(),
    )
}
"""All dialects by name, in the order in which a template is matched: specific before general."""


def get_dialect(name: str) -> Dialect:
    """Return the dialect of a name.

    >>> get_dialect("glm").description
    'GLM-4.5 and later: <arg_key> and <arg_value> tags, values without types'
    """
    if name not in DIALECTS:
        raise NotFound(f"there is no dialect {name!r}; {format_suggestion(name, DIALECTS)}")
    return DIALECTS[name]


def detect_dialect(template: str) -> Dialect | None:
    """Detect the dialect of a chat template; None for a template without tools.

    >>> detect_dialect("{{ '<tool_call>' }} {{ '<arg_key>' }}").name
    'glm'
    """
    return next((d for d in DIALECTS.values() if any(all(piece in template for piece in sign) for sign in d.template_signatures)), None)
