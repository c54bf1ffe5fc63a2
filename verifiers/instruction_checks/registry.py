"""Registry of all instructions by id: 25 of IFEval and 58 of IFBench."""

from __future__ import annotations

from rlvr.verifiers.instruction_checks import content, counts, layout, wording
from rlvr.verifiers.instruction_checks import custom_tasks as errands
from rlvr.verifiers.instruction_checks import formats as forms
from rlvr.verifiers.instruction_checks.instruction import InstructionKind

IFEVAL: dict[str, InstructionKind] = {kind.id: kind for kind in (*content.INSTRUCTIONS, *forms.INSTRUCTIONS)}
IFBENCH: dict[str, InstructionKind] = {
    kind.id: kind for kind in (*counts.INSTRUCTIONS, *wording.INSTRUCTIONS, *layout.INSTRUCTIONS, *errands.INSTRUCTIONS)
}
INSTRUCTIONS: dict[str, InstructionKind] = IFEVAL | IFBENCH
