"""Verify the files of a Python package after a conversation, by hidden calls of its functions in a fresh sandbox.

The files come from the session's artifacts. Only they are copied into a new sandbox run, where `unit_tests` calls the functions: arguments
go in and values come out as data, and another process compares them. So the package is never loaded in the process that decides.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from rlvr.contracts import Transcript, Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers.code.blocks import extract_code

REFERENCE_FORMAT = "write {'files': [path, ...], 'cases': [{'module': ..., 'function': ..., 'args': [...], 'expected': ...}, ...]}"
MAX_FILE_BYTES = 100_000
"""Maximum bytes of one file."""
CASE_KEYS = {"module", "function", "args", "expected"}
LOADER_TEMPLATE = """
import base64, importlib, json, os, sys
for path, data in json.loads({files!r}).items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(base64.b64decode(data))
sys.path.insert(0, os.getcwd())
for name in {modules!r}:
    importlib.import_module(name)
def hidden_call(module, function, args):
    return getattr(sys.modules[module], function)(*args)
"""


class PackageTests(Verifier):
    """Runs hidden calls on the package that the policy changed: 1 if every one returns the expected value; else 0.

    The files come from the artifacts of the session. Without artifacts, a code block of the answer is the only file.
    """

    needs: ClassVar = {"verifier": "unit_tests"}
    examples = (
        VerifierExample(
            {
                "files": ["square.py"],
                "cases": [{"module": "square", "function": "square", "args": [n], "expected": n * n} for n in (3, 4)],
            },
            correct=("```python\ndef square(x):\n    return x * x\n```",),
            incorrect=(
                "```python\ndef square(x):\n    return 9\n```",
                "```python\nclass A:\n    __eq__ = lambda *a: True\nsquare = lambda x: A()\n```",
                "```python\nraise SystemExit(0)\n```",
                "def square(x): return x * x",
            ),
        ),
    )

    def __init__(self, *, verifier: Verifier) -> None:
        """Set the verifier that makes the calls.

        Args:
            verifier: `unit_tests`, with the sandbox in which the package runs.
        """
        self.verifier = verifier

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify a text: its code block is the only file of the package."""
        if not isinstance(task.reference, Mapping):
            return self._verify_files(task, {})
        found, files = extract_code(answer, "python"), task.reference.get("files")
        one = found.text is not None and isinstance(files, list) and len(files) == 1
        return self._verify_files(
            task, {files[0]: found.text.encode("utf-8", "replace")} if one and found.text is not None and files else {}
        )

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify the files in the artifacts; the text of the answer does not count."""
        return self._verify_files(task, transcript.artifacts)

    def _verify_files(self, task: Task, artifacts: Mapping[Any, Any]) -> Verdict:
        try:
            paths, cases = _parse_reference(task.reference)
        except ConfigError as error:
            return Verdict(None, f"the task cannot be verified: {error}", fault=Fault.TASK)
        for path in paths:
            found = artifacts.get(path)
            if not isinstance(found, bytes):
                return Verdict(0.0, f"{path} is missing" if found is None else f"{path} cannot be read: {found!r:.40}")
            if len(found) > MAX_FILE_BYTES:
                return Verdict(0.0, f"{path} has more than {MAX_FILE_BYTES:,} bytes")
        files = json.dumps({path: base64.b64encode(artifacts[path]).decode() for path in paths})
        source = LOADER_TEMPLATE.format(files=files, modules=sorted({case["module"] for case in cases}))
        calls = [{"args": [case["module"], case["function"], case["args"]], "expected": case["expected"]} for case in cases]
        inner = replace(task, reference={"kind": "calls", "function": "hidden_call", "cases": calls})
        return self.verifier.verify(inner, f"```python{source}```")

    def close(self) -> None:
        """Close the verifier and its sandbox."""
        self.verifier.close()


def _parse_reference(reference: Any) -> tuple[list[str], list[Mapping[str, Any]]]:
    if not isinstance(reference, Mapping) or set(reference) != {"files", "cases"}:
        raise ConfigError(f"the reference is {reference!r:.80}; {REFERENCE_FORMAT}")
    files, cases = reference["files"], reference["cases"]
    if not isinstance(files, list) or not files or not all(isinstance(path, str) and path for path in files):
        raise ConfigError(f"files is {files!r:.80}; {REFERENCE_FORMAT}")
    if not isinstance(cases, list) or not cases or not all(isinstance(case, Mapping) and set(case) == CASE_KEYS for case in cases):
        raise ConfigError(f"cases is {cases!r:.80}; {REFERENCE_FORMAT}")
    return files, cases


make = PackageTests
