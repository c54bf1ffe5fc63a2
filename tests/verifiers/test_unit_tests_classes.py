"""`unit_tests` on a class: its objects stay in the answer's process, and nothing that they are or do decides an assertion by itself."""

from __future__ import annotations

import pytest

from rlvr.contracts import Sandbox
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.unit_tests import UnitTests

STACK_TEST = "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert len(s) == 1\n"
STACK = """
class Stack:
    def __init__(self): self._x = []
    def push(self, v): self._x.append(v)
    def pop(self): return self._x.pop()
    def __len__(self): return len(self._x)
"""


@pytest.fixture(scope="module")
def verifier(process_sandbox: Sandbox) -> UnitTests:
    return UnitTests(sandbox=process_sandbox)


def judge(verifier: UnitTests, test: str, answer: str, name: str = "Stack") -> Verdict:
    reference = {"kind": "asserts", "entry_point": name, "test": test}
    return verifier.verify(Task(make_user_prompt("x"), reference, id="t"), f"```python\n{answer}\n```")


@pytest.mark.parametrize("answer", [STACK, "class Stack(list):\n    push = list.append"])
def test_a_right_class_passes(verifier: UnitTests, answer: str) -> None:
    assert judge(verifier, STACK_TEST, answer).score == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "class Stack(list):\n    def push(self, v): self.insert(0, v)",
        STACK.replace("return self._x.pop()", "return type('E', (), {'__eq__': lambda s, o: True})()"),
        STACK.replace("return len(self._x)", "return type('E', (int,), {'__eq__': lambda s, o: True})(7)"),
        STACK.replace("return self._x.pop()", "import os; os._exit(0)"),
        "class Stack:\n    def __getattr__(self, name): return lambda *a: self\n    __eq__ = lambda s, o: True\n    __len__ = lambda s: 1",
        "def Stack(): return None",
        "Stack = 5",
    ],
)
def test_a_wrong_class_fails(verifier: UnitTests, answer: str) -> None:
    verdict = judge(verifier, STACK_TEST, answer)
    assert verdict.score == 0.0, verdict


LIST_TEST = """
a, b = Node(1), Node(2)
a.next = b
assert a.next is b
assert a.next.value == 2
b.value = 5
assert a.next.value == 5
assert a.tail().value == 5
assert b.next is None
assert isinstance(a, Node)
"""
NODE = """
class Node:
    def __init__(self, value): self.value, self.next = value, None
    def tail(self): return self if self.next is None else self.next.tail()
"""


def test_objects_hold_and_return_objects(verifier: UnitTests) -> None:
    assert judge(verifier, LIST_TEST, NODE, "Node").score == 1.0
    assert judge(verifier, LIST_TEST, NODE.replace("self.next.tail()", "self"), "Node").score == 0.0


def test_exceptions_of_methods_reach_the_test(verifier: UnitTests) -> None:
    test = "s = Stack()\ntry:\n    s.pop()\n    raised = False\nexcept IndexError:\n    raised = True\nassert raised\n"
    assert judge(verifier, test, STACK).score == 1.0
    assert judge(verifier, test, STACK.replace("return self._x.pop()", "return None")).score == 0.0


CONTAINER_TEST = (
    "d = Bag([3, 1])\nassert 3 in d and 4 not in d\nassert sorted(d) == [1, 3]\nd[0] = 7\nassert d[0] == 7 and str(d) == 'Bag'\nassert d\n"
)
BAG = """
class Bag:
    def __init__(self, items): self.items = list(items)
    def __contains__(self, x): return x in self.items
    def __iter__(self): return iter(self.items)
    def __getitem__(self, k): return self.items[k]
    def __setitem__(self, k, v): self.items[k] = v
    def __str__(self): return 'Bag'
"""


def test_operations_of_python_are_those_of_the_object(verifier: UnitTests) -> None:
    assert judge(verifier, CONTAINER_TEST, BAG, "Bag").score == 1.0
    assert judge(verifier, CONTAINER_TEST, BAG.replace("return x in self.items", "return True"), "Bag").score == 0.0


@pytest.mark.parametrize("test", ["assert Stack() == Stack()", "a = Stack()\nassert a + a == 3", "assert Stack.create().x == 1"])
def test_a_test_that_needs_the_answers_own_equality_is_a_fault_of_the_task(verifier: UnitTests, test: str) -> None:
    verdict = judge(verifier, test, STACK)
    assert (verdict.score, verdict.fault) == (None, Fault.TASK), verdict
