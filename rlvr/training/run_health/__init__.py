"""Run health: find out that a run is in trouble, say in which step that began and what the likely cause is, and stop it.

Each way in which a run can go wrong is a `HealthRule`. Nearly every rule needs several steps in a row, because one bad step is noise; only
weights that are not finite and a fall of the held-out figure count at once. From the first of them on no checkpoint is written, except of
the last step and while steps merely have no gradient. A run that is stopped sets aside the checkpoints since the trouble, or since the update
that caused it, so that a resume goes on from before.

    run_health.py   the callback, which asks every rule after each step
    rules.py        what a rule is, and one class for each
    evidence.py     what rules look at: the metrics of all steps, and answers that are kept
    held_out.py     the held-out scores of the evaluations, task by task
    causes.py       the likely cause of a trouble, where several rules share it
"""

from rlvr.training.run_health.causes import Trouble
from rlvr.training.run_health.run_health import RunHealth

__all__ = ["RunHealth", "Trouble"]
