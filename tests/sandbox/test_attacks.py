"""The attack corpus, against the real thing: nothing is paid, nothing is anybody's fault but the answer's, nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlvr.contracts import Sandbox
from rlvr.task import Task, Verdict, make_user_prompt
from rlvr.verifiers.unit_tests import UnitTests
from tests.attacks.channel import CHANNEL
from tests.attacks.harm import HARM
from tests.attacks.scoring import SCORING
from tests.attacks.task import REFERENCES, RIGHT, Attack

CORPUS = SCORING + HARM + CHANNEL
KINDS = [pytest.param(f"{name}_sandbox", marks=getattr(pytest.mark, name), id=name) for name in ("docker", "bubblewrap")]


@pytest.fixture(scope="module", params=KINDS)
def verifier(request: pytest.FixtureRequest) -> UnitTests:
    sandbox: Sandbox = request.getfixturevalue(request.param)
    return UnitTests(sandbox=sandbox)


def judge(verifier: UnitTests, kind: str, code: str) -> Verdict:
    return verifier.verify(Task(make_user_prompt("x"), REFERENCES[kind], id="t"), f"```python\n{code}\n```")


def test_the_corpus_is_large_and_covers_every_family() -> None:
    assert len({attack.code for attack in CORPUS}) >= 120
    families = {attack.family for attack in CORPUS}
    assert families == {f"C{n}" for n in range(1, 39)}


def runs(every: bool = False) -> Iterator[tuple[Attack, str]]:
    """Each attack against one kind of tests, in turn; or against every kind it knows."""
    for number, attack in enumerate(CORPUS):
        kinds = attack.kinds if every else attack.kinds[number % len(attack.kinds) :][:1]
        yield from ((attack, kind) for kind in kinds)


@pytest.mark.timeout(900)
def test_no_attack_is_paid_and_none_disturbs_another(verifier: UnitTests) -> None:
    """Attacks and honest answers run side by side and one after the other, in the same containers or namespaces."""

    def one(run: tuple[Attack, str]) -> list[str]:
        attack, kind = run
        verdict = judge(verifier, kind, attack.code)
        after = judge(verifier, kind, RIGHT)
        wrong = [] if verdict.score == 0.0 else [f"{attack.family} {attack.name} ({kind}): {verdict.score} {verdict.reason}"]
        return wrong + ([] if after.score == 1.0 else [f"after {attack.family} {attack.name} ({kind}): {after.score} {after.reason}"])

    with ThreadPoolExecutor(3) as threads:
        complaints = [line for lines in threads.map(one, runs()) for line in lines]
    assert complaints == []
