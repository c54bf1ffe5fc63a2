"""Run health: find out that a run is in trouble, say in which step that began and what the likely cause is, and stop it.

Each way in which a run can go wrong is a `HealthRule`. Nearly every rule needs several steps in a row, because one bad step is noise; only
weights that are not finite and a fall of the held-out figure count at once. From the first of them on no checkpoint is written, except of
the last step and while steps merely have no gradient. A run that is stopped sets aside the checkpoints since the trouble, or since the update
that caused it, so that a resume goes on from before.

    run_health.py       the callback, with the list of all rules
    rule.py             what a rule is, and what it finds
    evidence.py         what rules look at: the metrics of all steps, and answers that are kept
    scoring_rules.py    the verifier, the references and the tasks
    update_rules.py     gradients, the sign of the updates, the penalty, and the weights of the trainer and of the sampler
    policy_rules.py     the answers, the reward and the held-out figure
    causes.py           the likely cause, where several rules share it
"""

from rlvr.training.run_health.rule import HealthRule, Trouble
from rlvr.training.run_health.run_health import RunHealth

__all__ = ["HealthRule", "RunHealth", "Trouble"]
