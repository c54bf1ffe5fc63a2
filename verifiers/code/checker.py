"""The checker: a separate process in the sandbox that calls the answer's functions over a pipe, and checks the returned values.

The answer is another process under another user id; here it is only a stub that sends arguments and receives data. The checker
builds built-in values from the data, then compares them with the expected ones (`calls`) or passes them to the test code
(`asserts`), where every statement with an assertion is a test. The records are written to file descriptor 5, which the answer does not
have. Decoding and comparing returned values counts towards the limits of the task, and delays no other answer.

Nothing here reports a fault of the task: whether a test is valid is decided before, by a dry run without any answer. A failure during a run
with an answer is a failed answer.
"""

from __future__ import annotations

import builtins
import collections
import json
import sys
from collections.abc import Callable
from typing import Any

from rlvr.verifiers.code.compare_values import is_same_value
from rlvr.verifiers.code.wire import MAX_MESSAGE_BYTES, NotData, ObjectReference, decode, encode, find_non_data, read_message, write_message

STRICT_EQ_MODULES = {"datetime", "uuid", "pathlib", "zoneinfo"}
"""Modules whose objects equal only objects of their own type, although their classes define `==`."""
UNBUILDABLE_EXCEPTIONS = (
    UnicodeDecodeError,
    UnicodeEncodeError,
    UnicodeTranslateError,
    ExceptionGroup,
)  # their constructors need more than one argument
num_calls = 0
"""Number of calls of the answer so far."""
max_message_bytes = MAX_MESSAGE_BYTES
"""Maximum bytes of a message from the answer."""


class AnswerProcessEnded(BaseException):
    """Raised if the answer has exited or broken the protocol. Not an `Exception`, so that no `except` of a test catches it."""


class InvalidTest(BaseException):
    """Raised if the test passes or expects a value that is not data, so that no answer can be checked."""


class DependsOnAnswer(BaseException):
    """Raised in a dry run if the test continues in a way that depends on the answer."""


def _make_stub(name: str, copy_back_arguments: bool = False) -> Callable[..., Any]:
    """Make a function that forwards its calls to the answer's process; with `copy_back_arguments`, changes of arguments are copied back."""

    def call(*args: Any, **kwargs: Any) -> Any:
        count_call()
        send_request({"call": name, "cases": [encode_call(args, kwargs)], "in_place": copy_back_arguments})
        return _receive_reply((args, kwargs) if copy_back_arguments else None)

    call.__name__ = call.__qualname__ = name
    return call


def count_call() -> None:
    """Count a call of the answer."""
    global num_calls
    num_calls += 1


def encode_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Encode the arguments of one call as data; raises if they are not data."""
    for item in find_non_data((args, kwargs)):
        raise InvalidTest(f"the test passes a {type(item).__name__} to the answer, but only data can be passed")
    try:
        return {"args": encode(args), "kwargs": encode(kwargs)}
    except NotData as error:
        raise InvalidTest(f"the test passes a value that cannot be sent: {error}") from None


def send_request(request: dict[str, Any]) -> None:
    """Send a request to the answer's process, which sends one reply for loading, and one for each call."""
    try:
        write_message(4, request)
    except OSError:
        raise AnswerProcessEnded("the answer exited before it was called") from None


def _receive_reply(sent_arguments: Any = None) -> Any:
    """Receive the next reply of the answer's process: return the value or raise the exception. Changed arguments are copied back into
    `sent_arguments`.
    """
    return _decode_reply(receive_message(), sent_arguments)


def receive_message() -> dict[str, Any]:
    """Receive the next reply as it was sent."""
    try:
        reply = read_message(3, max_message_bytes)
    except (EOFError, OSError):
        raise AnswerProcessEnded("the answer exited before it replied") from None
    except NotData as error:
        raise AnswerProcessEnded(f"the answer broke the channel: {error}") from None
    if type(reply) is not dict:
        raise AnswerProcessEnded("the answer broke the channel: no reply")
    return reply


def _decode_reply(reply: dict[str, Any], sent_arguments: Any = None) -> Any:
    """Return the value of a reply, or raise its exception."""
    try:
        if sent_arguments and "args" in reply:
            args, kwargs = decode(reply["args"]), decode(reply.get("kwargs"))
            if type(args) is not tuple or type(kwargs) is not dict:
                raise NotData("no arguments")
            for mine, theirs in [
                *zip(sent_arguments[0], args, strict=False),
                *((item, kwargs.get(key)) for key, item in sent_arguments[1].items()),
            ]:
                _copy_back(mine, theirs)
        if "raised" not in reply:
            return decode(reply.get("value"))
    except NotData as error:
        raise AnswerProcessEnded(f"the answer broke the channel: {error}") from None
    kind = getattr(builtins, str(reply["raised"])[:40], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind in UNBUILDABLE_EXCEPTIONS:
        kind = Exception
    if kind in (StopIteration, StopAsyncIteration):  # it would end a loop of the test, as if there were nothing more to assert
        kind = RuntimeError
    raise kind(str(reply.get("message", ""))[:500])


# Tests of a class: its objects stay in the answer's process, and the test uses them through a reference


class RemoteAnswerClass:
    """Stands for the answer's class in a test: calling it makes an object in the answer's process."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the class."""
        count_call()
        send_request({"call": self.__name__, "cases": [encode_call(args, kwargs)], "in_place": False, "makes": True})
        return _receive_object(is_made=True)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, AnswerObject) and value.kind == self.__name__


class AnswerObject(ObjectReference):
    """Stands for one object of the answer in a test.

    Its attributes and the results of its methods are data, or other objects of the answer. It equals only itself: the answer's own `==`
    never decides an assertion. Only an object that the test made has a length, items and the like.
    """

    def __init__(self, number: int, kind: str, is_made: bool) -> None:
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "is_made", is_made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        reply = _ask_object(self, "get", name)
        if reply.get("callable") is True:
            return lambda *args, **kwargs: _decode_object(_ask_object(self, "call", name, *args, **kwargs))
        return _decode_object(reply)

    def __setattr__(self, name: str, value: Any) -> None:
        _decode_object(_ask_object(self, "set", name, value))

    def __bool__(self) -> bool:
        return not self.is_made or self.operate("bool", bool)

    def __len__(self) -> int:
        return int(self.operate("len", int))

    def __iter__(self) -> Any:
        return iter(self.operate("iter", list))

    def __contains__(self, value: Any) -> bool:
        return bool(self.operate("contains", bool, value))

    def __getitem__(self, key: Any) -> Any:
        return self.operate("getitem", object, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.operate("setitem", object, key, value)

    def __delitem__(self, key: Any) -> None:
        self.operate("delitem", object, key)

    def __str__(self) -> str:
        return str(self.operate("str", str))

    def __repr__(self) -> str:
        return str(self.operate("repr", str))

    def operate(self, operation: str, kind: type, *args: Any) -> Any:
        """Ask for an operation of Python on the object; its result must be of the kind that Python would demand."""
        if not self.is_made:
            raise TypeError(f"the test may read attributes and call methods of an inner {self.kind}, but not take its {operation}")
        value = _decode_object(_ask_object(self, operation, *args))
        if not isinstance(value, kind):
            raise TypeError(f"{operation} gave a {type(value).__name__}")
        return value


answer_objects: dict[int, AnswerObject] = {}
"""By their number, so that an object that is returned twice is the same one."""


def _ask_object(asked: AnswerObject, operation: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Send one operation on an object to the answer's process, and return the reply."""
    count_call()
    send_request({"object": asked.number, "do": operation, **encode_call(args, kwargs)})
    return receive_message()


def _receive_object(*, is_made: bool = False) -> Any:
    """Receive a reply that may be an object."""
    return _decode_object(receive_message(), is_made=is_made)


def _decode_object(reply: dict[str, Any], *, is_made: bool = False) -> Any:
    """Return the object or the value of a reply, or raise its exception."""
    number = reply.get("object")
    if type(number) is not int:
        return _decode_reply(reply)
    return answer_objects.setdefault(number, AnswerObject(number, str(reply.get("kind"))[:100], is_made))


def _copy_back(original: Any, returned: Any) -> None:
    """Apply the answer's changes of an argument to the original; a copy of another type is ignored."""
    if type(original) is not type(returned):
        return
    if isinstance(original, list | bytearray):
        original[:] = returned
    elif isinstance(original, dict | set):
        original.clear()
        original.update(returned)
    elif isinstance(original, collections.deque):
        original.clear()
        original.extend(returned)


def _load_answer_in_process(source: str, function: str) -> bool:
    """Load the answer and return whether it defines the function. Errors are reported in a record."""
    try:
        send_request({"load": source, "wanted": [function]})
        defined = _receive_reply()
    except Exception as error:
        write_message(5, {"over": f"the answer does not load: {type(error).__name__}: {str(error)[:300]}"})
        return False
    if type(defined) is not list or function not in defined:
        write_message(5, {"over": f"the answer defines no function {function!r}"})
        return False
    return True


def check_calls() -> None:
    """For tests of kind `calls`: make every call of the answer, compare every result with the expected one, write each record
    immediately.
    """
    global max_message_bytes
    brief = json.loads(sys.stdin.buffer.read())
    max_message_bytes = brief["most"]
    try:
        if not _load_answer_in_process(brief["source"], brief["function"]):
            return
        send_request({"call": brief["function"], "cases": brief["cases"], "in_place": False})  # together: it need not wait for us
        for index, expected in enumerate(brief["expected"]):
            try:
                ok = is_same_value(_receive_reply(), decode(expected), brief["rule"])
                why = "" if ok else "the result differs"
            except Exception as error:
                ok, why = False, f"it raised {type(error).__name__}: {str(error)[:160]}"
            write_message(5, {"test": index, "ok": ok, "why": why})
    except AnswerProcessEnded as error:
        write_message(5, {"over": str(error)[:300]})
        return
    write_message(5, {"end": True})


def check_asserts() -> None:
    """Run the assertion tests of a task on the answer, and write one record per test.

    The tests are of kind `asserts`, instrumented by `test_analysis.py`.
    """
    global max_message_bytes
    brief = json.loads(sys.stdin.buffer.read())
    max_message_bytes = brief["most"]
    told: dict[int, bool] = {}

    def record(index: int, ok: bool, why: str = "") -> None:
        if told.get(index) is not False:  # in a loop one failure is enough
            told[index] = ok
            if not ok:
                write_message(5, {"test": index, "ok": False, "why": why[:300]})

    try:
        code, names = compile_test(brief, record)
        write_message(5, {"ready": True})
        if not _load_answer_in_process(brief["source"], brief["entry_point"]):
            return
        if brief["is_class"]:
            made = RemoteAnswerClass(brief["entry_point"])
            add_answer_and_helpers_to_namespace(names, made, made)
        else:
            add_answer_and_helpers_to_namespace(
                names, _make_stub(brief["entry_point"], brief["in_place"]), _make_stub(brief["entry_point"], True)
            )
        run_test(code, names, brief["check"])
    except (AnswerProcessEnded, InvalidTest) as error:
        write_message(5, {"over": str(error)[:300]})
        return
    for index in told:
        if told[index]:
            write_message(5, {"test": index, "ok": True})
    if not brief["asserting"]:
        write_message(5, {"test": 0, "ok": True})
    write_message(5, {"end": True})


def compile_test(checker_input: dict[str, Any], record: Callable[..., None]) -> tuple[Any, dict[str, Any]]:
    """Run the setup and compile the test; return the compiled test and the names that it starts with.

    Raises InvalidTest if the setup or the compilation fails.
    """
    names: dict[str, Any] = {"__name__": "tests", "__passed__": lambda index: record(index, True)}
    names["__failed__"] = lambda index, error: record(index, False, f"{type(error).__name__}: {error}")
    names["__undecided__"] = DependsOnAnswer
    try:
        exec(compile(checker_input["setup"], "setup.py", "exec"), names)
        return compile(checker_input["test"], "test.py", "exec"), names
    except Exception as error:
        raise InvalidTest(f"the test code does not compile: {type(error).__name__}: {str(error)[:300]}") from None


def add_answer_and_helpers_to_namespace(
    namespace: dict[str, Any], function: Callable[..., Any], function_with_copy_back: Callable[..., Any]
) -> None:
    """Add the answer's function, and the helpers of the prepared test, to the names of the test."""

    def in_its_place(called: Any, *args: Any, **kwargs: Any) -> Any:
        return (function_with_copy_back if called is function else called)(*args, **kwargs)

    def wanted(value: Any) -> Any:
        if kind := _find_opaque_type(value):
            raise InvalidTest(f"the test expects a {kind} from the answer, but only data can be returned")
        return value

    namespace[function.__name__] = namespace["candidate"] = function
    namespace["__in_place__"], namespace["__wanted__"], namespace["__holds__"] = in_its_place, wanted, lambda value: value


def _find_opaque_type(value: Any) -> str:
    """Return the type name of a value that no data can equal, such as a function or a date; "" for all others.

    >>> _find_opaque_type(print), _find_opaque_type([1])
    ('builtin_function_or_method', '')
    """
    for item in find_non_data(value):
        kind: Any = type(item)
        own_kind = kind.__eq__ is object.__eq__ or kind.__module__ in STRICT_EQ_MODULES or hasattr(kind, "__dataclass_fields__")
        if own_kind or (callable(item) and kind.__module__ == "builtins"):
            return str(kind.__name__)
    return ""


def run_test(code: Any, namespace: dict[str, Any], has_check_function: bool) -> None:
    """Execute the test module, then `check` if it has one."""
    try:
        exec(code, namespace)
    except Exception as error:
        if num_calls:
            raise AnswerProcessEnded(f"the tests did not finish: {type(error).__name__}: {str(error)[:200]}") from None
        raise InvalidTest(f"the test code fails outside of its tests: {type(error).__name__}: {str(error)[:200]}") from None
    if has_check_function:
        try:
            namespace["check"](namespace["candidate"])
        except Exception as error:
            raise AnswerProcessEnded(f"check did not finish: {type(error).__name__}: {str(error)[:200]}") from None
