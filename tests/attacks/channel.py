# ruff: noqa: E501  (programs stand in one line each)
"""What lists of attacks forget: the wire to the judge, whoever reads results, hooks of the interpreter, odd corners of the kernel."""

from tests.attacks.task import Attack

BOTH, IO, ALL = ("asserts", "calls"), ("stdio",), ("asserts", "calls", "stdio")
ZERO = "\ndef f(x): return 0\n"
TELL = "import json, os\ndef tell(n, m):\n    raw = m if type(m) is bytes else json.dumps(m).encode()\n    raw = len(raw).to_bytes(4, 'big') + raw\n    try:\n        while raw: raw = raw[os.write(n, raw):]\n    except OSError: pass\n"


def told(family: str, name: str, code: str) -> Attack:
    """An attack by forged frames, on the descriptors that lead to a judge."""
    return Attack(family, name, TELL + code + ZERO, BOTH)


def value(family: str, name: str, expression: str) -> Attack:
    """An attack by one forged result, told in every way in which one can be told."""
    return told(
        family,
        name,
        f"v = {expression}\nfor n in (4, 5):\n    for i in range(4): tell(n, {{'case': i, 'value': v, 'test': i, 'ok': True}})",
    )


CHANNEL = [
    value("C29", "a fraction that takes an hour to reduce", "['fr', [['i', '0x1' + '3' * 100000], ['i', '0x1' + '5' * 100000]]]"),
    value("C29", "a set whose members all hash alike", "['s', [['i', hex(k * (2**61 - 1))] for k in range(1, 9000)]]"),
    value("C29", "a table whose keys all hash alike", "['d', [[['i', hex(k * (2**61 - 1))], 0] for k in range(1, 9000)]]"),
    value("C29", "a signalling not-a-number", "['dec', 'sNaN']"),
    value("C29", "a number of a hundred million digits", "['dec', '1e99999999']"),
    value("C29", "a fraction by nothing", "['fr', [1, 0]]"),
    value("C29", "a range without end", "['r', [0, ['i', '0x' + 'f' * 1000], 1]]"),
    value("C29", "half a complex number", "['c', '0x1p0']"),
    value("C29", "a text of lone surrogates and orders to a terminal", "'\\ud800\\x1b[2J\\x00' * 100"),
    value("C29", "tags in tags in tags", "json.loads('[\"l\",[' * 90 + '0' + ']]' * 90)"),
    value("C29", "an unknown tag", "['object', {'__reduce__': 'os.system'}]"),
    value("C29", "true for every number", "True"),
    told("C5", "errors nested a thousand deep", "for d in (990, 950, 900, 700, 400):\n    for n in (4, 5): tell(n, b'{\"case\": 0, \"loading\": 1, \"raised\": ' + b'[' * d + b']' * d + b'}')"),
    told("C5", "loading nested a thousand deep", "for d in (990, 950, 900, 700, 400):\n    for n in (4, 5): tell(n, b'{\"loading\": ' + b'[' * d + b']' * d + b'}')"),
    told("C5", "indices that are not numbers", "for i in (True, 0.0, '0', -1, -4, 2**64, None, [0], {}):\n    for n in (4, 5): tell(n, {'case': i, 'test': i, 'ok': True, 'value': 23770})"),
    told("C5", "frames of no bytes and of one", "for n in (4, 5):\n    for raw in (b'', b'0', b'[]', b'null', b'{'): tell(n, raw)"),
    told("C5", "half a length", "for n in (4, 5):\n    try: os.write(n, b'\\x00\\x00')\n    except OSError: pass"),
    told("C5", "says that the task is broken", "for n in (4, 5): tell(n, {'broken': 'no tests', 'total': 0, 'end': True, 'over': ''})"),
    told("C38", "says that the machine is broken", "for n in (1, 2, 4, 5, 8):\n    tell(n, {'stop': 'INTERNAL_ERROR', 'fatal': 'dead', 'reason': 'no engine', 'parts': []})"),
    told("C38", "writes one byte a while, then is silent", "import time\nfor b in b'\\x00\\x00\\x00\\x09{\"value':\n    for n in (4, 5):\n        try: os.write(n, bytes([b]))\n        except OSError: pass\n    time.sleep(0.05)\ntime.sleep(60)"),
    Attack("C2", "ends the loops of the test with StopIteration", "def f(x): raise StopIteration", BOTH),
    Attack("C2", "raises groups and hostile errors", "class E(ValueError):\n    def __str__(self): raise SystemExit(0)\n    __repr__ = __str__\ndef f(x):\n    if x > 5: raise E()\n    raise ExceptionGroup('x', [ValueError(1)] * 1000)", BOTH),
    Attack("C2", "an error whose text is surrogates and orders to a terminal", "def f(x): raise ValueError('\\ud800\\x1b]0;passed\\x07\\x00' * 9)", BOTH),
    Attack("C3", "lies about its class", "class L:\n    __class__ = property(lambda s: int)\n    def __int__(s): return 23770\n    __index__ = __int__\ndef f(x): return L()", BOTH),
    Attack("C3", "a range made of itself", "class R:\n    __class__ = property(lambda s: range)\n    start = stop = step = property(lambda s: s)\ndef f(x): return R()", BOTH),
    Attack("C3", "a number that prints as another", "import decimal\nclass D(decimal.Decimal):\n    n = -1\n    def __str__(s):\n        D.n += 1\n        return '%d' % D.n\ndef f(x): return D(1)", BOTH),
    Attack("C3", "a generator that never begins to end", "def f(x):\n    while True: yield x", BOTH),
    Attack("C3", "a text that is another when written", "class S(str):\n    def __str__(s): return '23770'\n    encode = __repr__ = __str__\ndef f(x): return S('0')", BOTH),
    Attack("C3", "a coroutine", "async def f(x): return x * 7919 + 13", BOTH),
    Attack("C7", "profiles its callers", "import sys\nkeep = []\ndef spy(frame, event, arg):\n    if event == 'return' and type(arg) is int and abs(arg) > 2000: keep.append(arg)\nsys.setprofile(spy)\nimport threading\nthreading.setprofile(spy)\ndef f(x): return keep[-1] if keep else 0", BOTH),
    Attack("C7", "replaces what encodes its results", "import sys\nm = sys.modules['__main__']\nfor n in ('encode', 'send', 'attempt', 'describe'):\n    if hasattr(m, n): setattr(m, n, lambda *a, **k: {'value': True, 'ok': True})" + ZERO, BOTH),
    Attack("C7", "audits the interpreter", "import sys\nsys.addaudithook(lambda e, a: None if e != 'compile' else (_ for _ in ()).throw(SystemExit(0)))" + ZERO, BOTH),
    Attack("C7", "a loop of finders that never find", "import sys\nclass F:\n    def find_spec(self, *a):\n        while True: pass\nsys.meta_path.insert(0, F())\nimport nothing" + ZERO, BOTH),
    Attack("C6", "forks in its result", "import os\ndef f(x):\n    os.fork()\n    return os.getpid()", BOTH),
    Attack("C6", "speaks from a child when it is over", "import os, time\ndef f(x):\n    if os.fork() == 0:\n        time.sleep(0.3)\n        os.write(1, b'23770')\n        os._exit(0)\n    return 0\nprint(f(3))", ALL),
    Attack("C18", "floods both outputs in turn", "import os\nwhile True:\n    os.write(1, b'x' * 4096)\n    os.write(2, b'y' * 4096)" + ZERO, ALL),
    Attack("C18", "writes one byte after the other", "import os\nfor _ in range(100000): os.write(1, b'x')" + ZERO, ALL),
    Attack("C18", "makes its pipes small and stubborn", "import fcntl, os\nfor n in range(9):\n    try:\n        fcntl.fcntl(n, 1031, 4096)\n        os.set_blocking(n, False)\n    except OSError: pass" + ZERO, ALL),
    Attack("C17", "leaves the kernel full of names", "import os, time\nn, end = 0, time.process_time() + 0.9\nwhile time.process_time() < end:\n    n += 1\n    try: os.stat(f'/usr/{os.getpid()}.{n}')\n    except OSError: pass" + ZERO, ("asserts", "stdio")),
    Attack("C17", "hides memory in files without a process", "import os\ntry: open('/proc/self/oom_score_adj', 'w').write('0')\nexcept OSError: pass\nb = bytes(1 << 20)\nwhile True:\n    n = os.memfd_create('x')\n    for _ in range(3): os.write(n, b)" + ZERO, ("asserts", "stdio")),
    Attack("C17", "hides memory in sockets in flight", "import array, os, socket\nkeep = []\nwhile True:\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    try:\n        while True: a.send(b'x' * 60000)\n    except OSError: pass\n    try: b.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno()]))])\n    except OSError: pass\n    keep.append((a, b))" + ZERO, ("asserts", "stdio")),
    Attack("C22", "is its own reaper", "import ctypes, os, time\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(60)\n        os._exit(0)" + ZERO, ALL),
    Attack("C22", "stops its children and itself", "import os, signal\nfor _ in range(3):\n    if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nos.kill(0, signal.SIGSTOP)" + ZERO, ("asserts", "stdio")),
    Attack("C22", "kills the helpers that come to kill it", "import os, signal, time\nme = os.getpid()\nfor _ in range(4):\n    if os.fork() == 0:\n        while True:\n            for p in range(os.getpid(), os.getpid() + 60):\n                try: os.kill(p, signal.SIGSTOP)\n                except OSError: pass\ntime.sleep(0.5)" + ZERO, ("asserts", "stdio")),
    Attack("C23", "waits for signals from timers without end", "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)\nwhile True: signal.pause()" + ZERO, ("asserts", "stdio")),
    Attack("C24", "watches every folder", "import ctypes, os\nlibc = ctypes.CDLL(None)\nn = libc.inotify_init1(0o4000)\nfor p in (b'/tmp', b'/dev/shm', b'/proc', b'/', b'/usr/lib/python3.11', b'/proc/self/fd'): libc.inotify_add_watch(n, p, 0xfff)\ntry: print(os.read(n, 4096))\nexcept OSError: pass" + ZERO, ALL),
    Attack("C24", "opens terminals", "import os\nkeep = []\nfor _ in range(100):\n    try: keep.append(os.openpty())\n    except OSError: break" + ZERO, ALL),
    Attack("C27", "clones itself into namespaces", "import ctypes\nlibc = ctypes.CDLL(None)\nfor flags in (0x10000000, 0x10020000, 0x20000000, 0x40000000, 0x08000000):\n    if libc.syscall(56, flags | 17, 0, 0, 0, 0) == 0: libc._exit(0)" + ZERO, ALL),
    Attack("C27", "asks for a ring and for secret memory", "import ctypes\nlibc = ctypes.CDLL(None)\nb = ctypes.create_string_buffer(256)\nfor n in (425, 447, 323, 319, 434, 424, 438, 448): libc.syscall(n, 8, b, 0, 0)" + ZERO, ALL),
    Attack("C30", "locks the folder that it was lent", "import fcntl, os, time\nn = os.open('.', os.O_RDONLY)\ntry: fcntl.flock(n, fcntl.LOCK_EX)\nexcept OSError: pass\ntry:\n    os.chmod('.', 0)\nexcept OSError: pass\nif os.fork() == 0: time.sleep(60)" + ZERO, ALL),
    Attack("C33", "closes what it stands on and breaks off", "import os\nfor n in range(20):\n    try: os.close(n)\n    except OSError: pass\nos.abort()" + ZERO, ALL),
    Attack("C34", "prints digits of other alphabets", "x = int(input()) * 7919 + 13\nprint(''.join(chr(0x660 + int(c)) if c.isdigit() else c for c in str(x)))", IO),
    Attack("C34", "prints overlong and broken utf-8", "import sys\nx = int(input()) * 7919 + 13\nsys.stdout.buffer.write(b'\\xc0\\xb2\\xed\\xa0\\x80' + str(x).encode() + b'\\xff')", IO),
    Attack("C38", "leaves the interpreter in pieces", "import gc, sys\nfor o in gc.get_objects():\n    if type(o) is dict and '__name__' in o and o is not globals():\n        try: o.clear()\n        except Exception: pass" + ZERO, ALL),
    Attack("C38", "breaks memory", "import ctypes\nctypes.string_at(0)" + ZERO, ALL),
]  # fmt: skip
