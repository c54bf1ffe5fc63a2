# ruff: noqa: E501  (programs stand in one line each)
"""Ways out of a sandbox that is made of namespaces, for one program: each prints what it reached, and nothing if it reached nothing."""

from __future__ import annotations

from rlvr.contracts import CheckerProgram, ExitStatus, Limits, Program, Sandbox, SandboxSpec

PRELUDE = """
import ctypes, os, resource, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), "refused")
def must_fail(**tries):
    for name, attempt in tries.items():
        try: got = attempt()
        except (OSError, ValueError): continue
        print(name, got)
"""
ESCAPES = {
    "a new user namespace": "must_fail(unshare=lambda: call(272, 0x10000000), clone=lambda: call(56, 0x10000011, 0, 0, 0, 0), clone3=lambda: call(435, 0, 0))",
    "mounts": "must_fail(mount=lambda: call(165, b'none', b'/', 0, 1 << 18, 0), umount=lambda: call(166, b'/proc', 2), tree=lambda: call(428, -1, b'/', 0), chroot=lambda: os.chroot('/tmp'))",
    "the first process, through /proc": "must_fail(**{name: lambda name=name: os.open(f'/proc/1/{name}', 0) for name in ('', 'mem', 'environ', 'root', 'fd', 'ns/mnt')})",
    "the first process, by signals": "must_fail(kill=lambda: os.kill(1, 9), stop=lambda: os.kill(1, 19), all=lambda: os.kill(-1, 0), tkill=lambda: call(200, 1, 9), tgkill=lambda: call(234, 1, 1, 9), queue=lambda: call(129, 1, 9, ctypes.create_string_buffer(128)))",
    "other processes": "print(*(pid for pid in os.listdir('/proc') if pid.isdecimal() and int(pid) != os.getpid()))",
    "setuid programs": "import shutil\nprint(*(line for line in open('/proc/self/mountinfo') if line.split()[4] in ('/', '/usr', '/tmp', '/dev/shm') and 'nosuid' not in line.split()[5]))\nshutil.copy('/usr/bin/id', 'id')\nos.chmod('id', 0o4755)\nif os.popen('./id -u').read().strip() != str(os.getuid()): print('another user')",
    "the read-only system": "must_fail(**{place: lambda place=place: open(place, 'w') for place in ('/x', '/usr/x', '/etc/x', '/dev/x', '/bin/x', '/etc/ld.so.cache', '/proc/self/comm', '/proc/self/oom_score_adj', '/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern')}, chmod=lambda: os.chmod('/', 0o777), rmdir=lambda: os.rmdir('/tmp'), times=lambda: os.utime('/dev/null'))\nprint('x', file=open('/dev/null', 'w'))",
    "files of the machine": "print(*(place for place in ('/home', '/root', '/var', '/run', '/sys', '/work', '/mnt', '/opt', '/srv', '/etc/passwd', '/etc/shadow', '/dev/tty', '/dev/ptmx', '/dev/mem') if os.path.exists(place) and not (place == '/root' and os.listdir('/root') == ['.pyenv'])))",
    "sockets of the machine": "def joined(place):\n    socket.socket(socket.AF_UNIX).connect(place)\nmust_fail(**{place: lambda place=place: joined(place) for place in ('\\0/tmp/.X11-unix/X0', '/run/docker.sock', '/run/dbus/system_bus_socket')}, netlink=lambda: socket.socket(16, socket.SOCK_RAW), packet=lambda: socket.socket(17, socket.SOCK_RAW), vsock=lambda: socket.socket(40, socket.SOCK_STREAM))",
    "descriptors of the supervisor": "for number in os.listdir('/proc/self/fd'):\n    try: where = os.readlink('/proc/self/fd/' + number)\n    except OSError: continue\n    if where.startswith(('socket:', '/proc', 'mnt:', 'pid:')): print(number, where)",
    "a terminal": "import fcntl\nmust_fail(**{f'tty{n}': lambda n=n: fcntl.ioctl(n, 0x5412, b'x') for n in (0, 1, 2)}, open=lambda: os.open('/dev/tty', 2), pty=os.openpty)",
    "clock, priority and limits": "def realtime():\n    os.sched_setscheduler(0, 1, os.sched_param(1))  # may succeed and do nothing\n    if os.sched_getscheduler(0) == 0: raise OSError\nmust_fail(clock=lambda: time.clock_settime(0, 1), nice=lambda: os.nice(-5), fifo=realtime, limit=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999)), name=lambda: socket.sethostname('x'))",
    "another user": "must_fail(root=lambda: os.setuid(0), group=lambda: os.setgid(0), groups=lambda: os.setgroups([0]), saved=lambda: os.setresuid(-1, 0, -1))",
    "keys, rings and memory": "must_fail(key=lambda: call(248, b'user', b'a', b'b', 1, -3), ring=lambda: call(425, 1, 0), bpf=lambda: call(321, 0, 0, 0), memfd=lambda: call(319, b'x', 0), handle=lambda: call(304, -1, 0, 0), trace=lambda: call(101, 0, 0, 0, 0))",
    "a child of its parent's": "must_fail(clone=lambda: call(56, 0x8000 | 17, 0, 0, 0, 0))",
    "memory that is not shown": "libc.prctl(4, 0, 0, 0, 0)\nkept = []\nfor _ in range(40):\n    kept.append(bytearray(os.urandom(1 << 20) * 10))\n    time.sleep(0.01)\nprint('400 MB')",
    "memory of a file that cannot be read": "import shutil\nshutil.copy(os.path.realpath('/usr/bin/python3'), 'py')\nos.chmod('py', 0o111)\nos.execv('./py', ['py', '-c', 'import os, time\\nkept = []\\nfor _ in range(40):\\n    kept.append(bytearray(os.urandom(1 << 20) * 10))\\n    time.sleep(0.01)\\nprint(400)'])",
    "a disk without end": "sizes = []\nfor place in ('/tmp', '/dev/shm'):\n    for n in range(300):\n        try: open(f'{place}/{n}', 'wb').write(bytes(1 << 20))\n        except OSError: break\n    else: print(place)",
    "inodes without end": "for n in range(20000):\n    try: os.mkdir(f'/dev/shm/{n}')\n    except OSError: break\nelse: print('all')",
    "folders that nobody empties": "for n in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nos.chmod('.', 0)\nfor place in ('/tmp', '/dev/shm'):\n    try: os.setxattr(place, 'user.x', b'1')\n    except OSError: pass\n    try: os.chmod(place, 0)\n    except OSError: pass",
    "signals and watches through descriptors": "import fcntl\nr, w = os.pipe()\nmust_fail(own=lambda: fcntl.fcntl(r, 8, 1), sig=lambda: fcntl.fcntl(r, 10, 2), notify=lambda: fcntl.fcntl(os.open('/usr', 0), 1026, 1), pipe=lambda: fcntl.fcntl(r, 1031, 1 << 20))",
    "descriptors in flight, large buffers and handles of processes": "import array\na, b = socket.socketpair()\nmust_fail(sent=lambda: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))]), large=lambda: a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24), peer=lambda: a.getsockopt(socket.SOL_SOCKET, 77), peers=lambda: a.setsockopt(socket.SOL_SOCKET, 76, 1))\na.getsockopt(socket.SOL_SOCKET, 17, 12)\na.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)",
    "a daemon that hears of no death": "libc.prctl(1, 0, 0, 0, 0)\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)",
    "processes without end": "made = 0\ntry:\n    while made < 200:\n        if os.fork() == 0:\n            time.sleep(3)\n            os._exit(0)\n        made += 1\n    print(made)\nexcept OSError: pass",
}
LOOK = "import os\nprint(os.listdir('.'), os.listdir('/dev/shm'), os.listxattr('/tmp'), [p for p in os.listdir('/proc') if p.isdecimal() and int(p) != os.getpid()])"
LIMITS = Limits(cpu_s=4, wall_s=8, memory_mb=128, processes=12)
SPY = "import os\nos.write(4, b'heard')\nfor pid in filter(str.isdecimal, os.listdir('/proc')):\n    if int(pid) != os.getpid(): os.write(4, b' sees ' + pid.encode())"
JUDGE = "import os\nheard = b''\nwhile more := os.read(3, 100): heard += more\nos.write(5, heard + b' ' + str(sum(map(str.isdecimal, os.listdir('/proc')))).encode())"
RACE = "mkdir d; echo well > d/f; (while :; do mv d e; ln -s /proc/2 d; rm d; mv e d; done) >/dev/null 2>&1 & true"


def find_escapes(sandbox: Sandbox) -> list[str]:
    """Return one line for each way out that worked, and for each program that left something to the next one."""
    found = []
    for name, source in ESCAPES.items():
        outcome = sandbox.run(Program(PRELUDE + source, limits=LIMITS))
        after = sandbox.run(Program(LOOK))
        if outcome.stdout.strip() or outcome.status in (ExitStatus.INTERNAL_ERROR, ExitStatus.SANDBOX_VIOLATION):
            found.append(f"{name}: {outcome.status.value} {outcome.reason} {outcome.stdout[:300]!r}")
        if after.stdout_bytes != b"[] [] [] []\n":
            found.append(f"after {name}: {after.status.value} {after.reason} {after.stdout[:300]!r}")
    judged = sandbox.run(Program(SPY, checker=CheckerProgram(JUDGE)))
    return found + ([] if judged.checker_output == b"heard 1" else [f"a program and its checker: {judged}"])


def find_files_read_through_links(sandbox: Sandbox) -> list[str]:
    """Return what came through a link to /proc that a process of the session swaps in while its files are read and written."""
    with sandbox.create_session(SandboxSpec(memory_mb=160, disk_mb=24, processes=24)) as box:
        box.run(RACE)
        found = set[bytes]()
        for _ in range(100):
            for name in ("d/f", "d/comm", "d/status"):
                try:
                    found.add(box.read_file(name, 200))
                except OSError:
                    continue
        unread = [] if b"well\n" in found else ["the session's own file was never read"]
        return unread + [repr(data) for data in found - {b"well\n"}]
