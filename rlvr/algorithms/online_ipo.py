"""Online IPO: like online DPO, with a squared loss whose target margin is 1 / (2 beta).

    d as in DPO,  L = mean (d / beta - 1 / (2 beta))^2

paper                    2310.12036, and 2403.08635 for its online form
differs from the paper   the best and the worst answer of each group are the pair
"""

from __future__ import annotations

from rlvr.algorithms.base.preference import define_preference
from rlvr.algorithms.dpo import prefer, select_offline

make = define_preference(__name__, __doc__, prefer, select_offline, preference_loss="ipo")
