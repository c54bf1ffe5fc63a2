"""Registry of all instructions by id: 25 of IFEval and 58 of IFBench."""

from __future__ import annotations

from rlvr.verifiers._instructions import content, counts, errands, forms, layout, wording
from rlvr.verifiers._instructions.kind import Kind

IFEVAL: dict[str, Kind] = {kind.id: kind for kind in (*content.KINDS, *forms.KINDS)}
IFBENCH: dict[str, Kind] = {kind.id: kind for kind in (*counts.KINDS, *wording.KINDS, *layout.KINDS, *errands.KINDS)}
KINDS: dict[str, Kind] = IFEVAL | IFBENCH
