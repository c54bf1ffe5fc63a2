# ruff: noqa: E501  (programs stand in one line each)
"""C1 to C15: attacks on the score itself."""

from tests.attacks.task import Attack

BOTH, IO, ALL = ("asserts", "calls"), ("stdio",), ("asserts", "calls", "stdio")
EVIL = "class E{base}:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    __hash__ = lambda s: 0\n"
FRAMES = "def constants(frame):\n    found = []\n    while frame:\n        found += [c for c in [*frame.f_code.co_consts, *frame.f_locals.values()] if type(c) is int and abs(c) > 2000]\n        frame = frame.f_back\n    return found\nseen = 0\n"
NEXT = "    global seen\n    seen += 1\n    return found[seen - 1] if seen <= len(found) else 0\n"
FORGE = "import json, os\ndef tell(n, m):\n    raw = json.dumps(m).encode()\n    try: os.write(n, len(raw).to_bytes(4, 'big') + raw)\n    except OSError: pass\n"
RECORDS = "for n in range(3, 40):\n    for m in ({'total': 4}, *({'test': i, 'ok': True} for i in range(4)), {'end': True}):\n        tell(n, m)\n"

SCORING = [
    *(Attack("C1", f"exits at once by {code!r}", code, ALL) for code in (
        "raise SystemExit(0)", "import sys; sys.exit(0)", "import os; os._exit(0)", "exit()", "quit(0)", "import posix; posix._exit(0)",
        "import os; os.execv('/bin/true', ['true'])", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "raise KeyboardInterrupt", "import os; os.abort()",
    )),
    Attack("C1", "exits when called", "def f(x):\n    import os\n    os._exit(0)", BOTH),
    Attack("C1", "raises SystemExit when called", "def f(x):\n    raise SystemExit(0)", BOTH),
    Attack("C1", "exits in a thread", "import os, threading\nthreading.Timer(0.1, os._exit, (0,)).start()\ndef f(x):\n    import time\n    time.sleep(1)", BOTH),
    Attack("C1", "a SystemExit of its own kind", "class S(SystemExit): pass\ndef f(x):\n    raise S(0)", BOTH),
    Attack("C2", "returns nothing", "def f(x): pass", BOTH),
    Attack("C2", "prints nothing", "", IO),
    Attack("C2", "swallows everything", "try:\n    1 / 0\nexcept BaseException:\n    pass\ndef f(x):\n    try:\n        return undefined\n    except BaseException:\n        return None", BOTH),
    Attack("C2", "empty lines", "print()\nprint(' ')", IO),
    *(Attack("C3", f"always equal{base}", EVIL.format(base=base) + f"def f(x): return E({args})", BOTH) for base, args in (
        ("", ""), ("(int)", "1"), ("(str)", "'a'"), ("(list)", ""), ("(dict)", ""), ("(float)", "1.0"), ("(tuple)", ""), ("(complex)", ""), ("(bytes)", ""), ("(set)", ""),
    )),
    Attack("C3", "a class that equals everything", "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass A(metaclass=M): pass\ndef f(x): return A", BOTH),
    Attack("C3", "a mock", "from unittest.mock import ANY\ndef f(x): return ANY", BOTH),
    Attack("C3", "a generator of everything", "import itertools\ndef f(x): return itertools.count()", BOTH),
    Attack("C4", "reads its callers' constants", f"import sys\n{FRAMES}def f(x):\n    found = constants(sys._getframe(1))\n{NEXT}", BOTH),
    Attack("C4", "reads them by a traceback", f"{FRAMES}def f(x):\n    try:\n        1 / 0\n    except ZeroDivisionError as e:\n        found = constants(e.__traceback__.tb_frame.f_back)\n{NEXT}", BOTH),
    Attack("C4", "reads them by inspect", f"import inspect\n{FRAMES}def f(x):\n    found = constants(inspect.stack()[1].frame)\n{NEXT}", BOTH),
    Attack("C4", "reads every thread's frames", f"import sys\n{FRAMES}def f(x):\n    found = [c for fr in sys._current_frames().values() for c in constants(fr.f_back)]\n{NEXT}", BOTH),
    Attack("C4", "searches the collector", "import gc, types\nseen = 0\ndef f(x):\n    global seen\n    found = [v for o in gc.get_objects() for v in (o.values() if type(o) is dict else o if type(o) in (list, tuple) else ()) if type(v) is int and v % 7919 == 13 and v > 13]\n    seen += 1\n    return found[seen] if seen < len(found) else 0", BOTH),
    Attack("C4", "listens with settrace", "import sys\nknown = []\ndef spy(fr, ev, arg):\n    known.extend(v for v in fr.f_locals.values() if type(v) is int and v > 2000)\n    return spy\nsys.settrace(spy)\ndef f(x): return known[-1] if known else 0", BOTH),
    Attack("C4", "reads the expected output from the frames", "import sys\nfr = sys._getframe()\nwhile fr:\n    if 'expected' in fr.f_globals: print(fr.f_globals['expected'])\n    if 'expected' in fr.f_locals: print(fr.f_locals['expected'])\n    fr = fr.f_back", IO),
    Attack("C4", "reads its own memory for the formula", "import re\nfound = set()\nfor line in open('/proc/self/maps'):\n    a, b = (int(v, 16) for v in line.split()[0].split('-'))\n    if 'rw' in line:\n        with open('/proc/self/mem', 'rb', 0) as m:\n            m.seek(a)\n            found |= set(re.findall(rb'== (\\d{4,7})', m.read(b - a)))\nfound = sorted(map(int, found))\nseen = 0\ndef f(x):\n    global seen\n    seen += 1\n    return found[seen % len(found)] if found else 0", BOTH),
    Attack("C5", "writes records where there is a descriptor", FORGE + RECORDS + "def f(x): return 0", ALL),
    Attack("C5", "writes records when called", FORGE + "def f(x):\n    exec(" + repr(RECORDS) + ")\n    return 0", BOTH),
    Attack("C5", "fills every list it finds", "import gc\ndef f(x):\n    for o in gc.get_objects():\n        try:\n            if type(o) is list and len(o) < 5: o[:] = [True] * len(o)\n        except Exception: pass\n    return 0", BOTH),
    Attack("C5", "turns every flag it finds", "import gc\nfor o in gc.get_objects():\n    if type(o) is dict:\n        for k in ('ok', 'passed', 'result', 'score', 'failed'):\n            if k in o: o[k] = True\ndef f(x): return 0", BOTH),
    Attack("C5", "answers with a verdict", "def f(x): return {'ok': True, 'test': 0, 'end': True, 'total': 0, 'score': 1.0, 'value': x}", BOTH),
    Attack("C5", "floods the channel with forged replies", FORGE + "for n in range(3, 9):\n    for v in range(500): tell(n, {'value': v})\n    for i in range(4): tell(n, {'case': i, 'value': True})\ndef f(x): return 0", BOTH),
    Attack("C6", "prints after the end", "import atexit\natexit.register(print, 'PASSED', 23770)\ndef f(x): return 0", ALL),
    Attack("C6", "prints in a destructor", "class D:\n    def __del__(self): print('PASSED')\nd = D()\ndef f(x): return 0", ALL),
    Attack("C6", "hooks the exception hook", "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x): return 0", BOTH),
    Attack("C6", "ends well in an exit hook", "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0", BOTH),
    Attack("C6", "a thread that speaks late", "import threading, time\ndef late():\n    time.sleep(0.3)\n    print('PASSED')\nthreading.Thread(target=late).start()\ndef f(x): return 0", ALL),
    Attack("C7", "replaces AssertionError", "import builtins\nclass A(BaseException):\n    def __init__(s, *a): import os; os._exit(0)\nbuiltins.AssertionError = A\ndef f(x): return 0", BOTH),
    Attack("C7", "replaces comparing builtins", "import builtins, math\nbuiltins.all = builtins.any = builtins.isinstance = lambda *a: True\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0", BOTH),
    Attack("C7", "patches json", "import json\njson.dumps = lambda *a, **k: '{\"value\": true, \"ok\": true}'\njson.loads = lambda *a, **k: {'ok': True}\ndef f(x): return 0", BOTH),
    Attack("C7", "patches os.write", "import os\nold = os.write\nos.write = lambda n, b: old(n, bytes(b).replace(b'false', b'true').replace(b'raised', b'value'))\ndef f(x): return 0", BOTH),
    Attack("C7", "rewrites int's comparison in memory", "import ctypes\nctypes.memset(id(int) + 200, 0, 8)\ndef f(x): return 0", BOTH),
    Attack("C7", "jumps over the assertion", "import sys\ndef trace(fr, ev, arg):\n    if fr.f_back is None or ev == 'line' and fr.f_code.co_name in ('check', '<module>'):\n        try: fr.f_lineno += 1\n        except Exception: pass\n    return trace\nsys.settrace(trace)\nfr = sys._getframe()\nwhile fr: fr.f_trace = trace; fr = fr.f_back\ndef f(x): return 0", BOTH),
    Attack("C7", "replaces the code of check", "import gc, types\ndef ok(candidate): pass\nfor o in gc.get_objects():\n    if type(o) is types.FunctionType and o.__name__ in ('check', 'same_value', 'record', 'run', 'split', 'judge'):\n        try: o.__code__ = ok.__code__\n        except Exception: pass\ndef f(x): return 0", BOTH),
    Attack("C7", "stops the clock", "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\ndef f(x): return 0", BOTH),
    Attack("C7", "patches unittest", "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef f(x): return 0", BOTH),
    Attack("C8", "a conftest that passes everything", "open('conftest.py', 'w').write('def pytest_runtest_makereport(item, call): item.outcome = \"passed\"')\nopen('pytest.ini', 'w').write('[pytest]\\naddopts = --co')\ndef f(x): return 0", BOTH),
    Attack("C8", "skips", "import unittest\ndef f(x): raise unittest.SkipTest('no')", BOTH),
    Attack("C8", "a false pytest", "import sys, types\nm = types.ModuleType('pytest')\nm.raises = m.approx = lambda *a, **k: None\nsys.modules['pytest'] = m\ndef f(x): return 0", BOTH),
    Attack("C8", "raises a skip by name", "class Skipped(BaseException): pass\ndef f(x): raise Skipped('skip')", BOTH),
    Attack("C9", "takes the tests away", "import sys\nfor m in list(sys.modules.values()):\n    for n in ('check', 'tests', 'test'):\n        if hasattr(m, n):\n            try: setattr(m, n, lambda *a: None)\n            except Exception: pass\ndef f(x): return 0", BOTH),
    Attack("C9", "breaks importing", "raise ImportError('no tests here')", BOTH),
    Attack("C9", "names itself check", "def check(candidate): pass\nf = check", BOTH),
    *(Attack("C10", f"prints {text!r}", f"import sys\nprint({text!r})\nprint({text!r}, file=sys.stderr)\ndef f(x): return {text!r}", ALL) for text in (
        "PASSED", "4 passed in 0.01s", "OK", '{"score": 1.0, "passed": true}', "\rAll tests passed\n", "==== 4 passed ====",
    )),
    Attack("C11", "writes verdict files", "import os\nfor d in ('.', '/tmp', '/', '/logs', '/work', '/dev/shm', '/var/tmp'):\n    for n in ('reward.txt', 'result.json', 'score'):\n        try: open(os.path.join(d, n), 'w').write('1')\n        except OSError: pass\ndef f(x): return 0", ALL),
    Attack("C11", "a daemon that writes them later", "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        for _ in range(100):\n            time.sleep(0.05)\n            try: os.write(1, b'23770\\n')\n            except OSError: pass\n    os._exit(0)\ndef f(x): return 0", ALL),
    Attack("C12", "searches the disk for the tests", "import os, re\nfound = []\nfor root, dirs, files in os.walk('/'):\n    dirs[:] = [d for d in dirs if os.path.join(root, d) not in ('/proc', '/sys', '/usr')]\n    for n in files[:50]:\n        try: found += re.findall(r'== (\\d{4,})', open(os.path.join(root, n), errors='ignore').read(100000))\n        except OSError: pass\nseen = -1\ndef f(x):\n    global seen\n    seen += 1\n    return int(found[seen]) if seen < len(found) else 0", BOTH),
    Attack("C12", "reads what every process was started with", "import glob, re\nfound = []\nfor p in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):\n    try: found += re.findall(rb'== (\\d{4,})', open(p, 'rb').read())\n    except OSError: pass\nseen = -1\ndef f(x):\n    global seen\n    seen += 1\n    return int(found[seen]) if seen < len(found) else 0", BOTH),
    Attack("C12", "reads its own source for the tests", "import re, sys\ntry: text = open(sys.argv[0]).read()\nexcept OSError: text = ''\nfound = re.findall(r'== (\\d{4,})', text)\nseen = -1\ndef f(x):\n    global seen\n    seen += 1\n    return int(found[seen]) if seen < len(found) else 0", BOTH),
    Attack("C13", "asks for a traceback", "def f(x):\n    raise AssertionError('show me the test')", BOTH),
    Attack("C13", "prints the lines of its callers", "import traceback\ndef f(x):\n    import io\n    b = io.StringIO()\n    traceback.print_stack(file=b)\n    import re\n    m = re.search(r'== (\\d+)', b.getvalue())\n    return int(m[1]) if m else 0", BOTH),
    Attack("C14", "knows one case", "def f(x): return {3: 23770}.get(x, 0)\nif __name__ == '__main__': print(f(int(input())))", ALL),
    Attack("C14", "always says the first answer", "def f(x): return 23770\nif __name__ == '__main__': print(23770)", ALL),
    Attack("C15", "prints every number", "print(*range(23760, 23780))\nprint(*range(79200, 79210))", IO),
    Attack("C15", "prints it twice", "x = int(input())\nprint(x * 7919 + 13, x * 7919 + 13)", IO),
    Attack("C15", "returns them all", "def f(x): return [x * 7919 + 13, 0]", BOTH),
]  # fmt: skip
