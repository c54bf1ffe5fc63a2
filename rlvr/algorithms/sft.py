"""SFT: supervised learning on solutions, the environment's own or the best ones of an earlier run.

    L = -(1/N) sum l over the solutions' tokens, l at temperature 1

paper                    2203.02155
differs from the paper   no
"""

from __future__ import annotations

from rlvr.algorithms.base.preference import define_imitation
from rlvr.algorithms.best_of_n import choose, select_offline

make = define_imitation(__name__, __doc__, choose, select_offline)
