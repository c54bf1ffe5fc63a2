"""Registry of all instructions by id: 25 of IFEval and 58 of IFBench."""

from __future__ import annotations

from rlvr.verifiers._instructions import content, counts, errands, forms, layout, wording
from rlvr.verifiers._instructions.kind import Instruction

IFEVAL: dict[str, Instruction] = {kind.id: kind for kind in (*content.INSTRUCTIONS, *forms.INSTRUCTIONS)}
IFBENCH: dict[str, Instruction] = {kind.id: kind for kind in (*counts.INSTRUCTIONS, *wording.INSTRUCTIONS, *layout.INSTRUCTIONS, *errands.INSTRUCTIONS)}
INSTRUCTIONS: dict[str, Instruction] = IFEVAL | IFBENCH
