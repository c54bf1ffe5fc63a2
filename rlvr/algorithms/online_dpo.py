"""Online DPO: the best and the worst answer of each group as a pair, ties skipped.

    d = beta ((l+ - l+_ref) - (l- - l-_ref)),  L = -mean log sigmoid(d)

paper                    2402.04792
differs from the paper   the verifier scores the answers, not a language model
"""

from __future__ import annotations

from rlvr.algorithms.base.preference import define_preference
from rlvr.algorithms.dpo import prefer, select_offline

make = define_preference(__name__, __doc__, prefer, select_offline)
