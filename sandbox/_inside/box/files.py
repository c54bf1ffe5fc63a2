"""Write and read a session's files under the session's user id, so that no link reaches further than the session itself could.

Runs inside the container: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Mapping

from rlvr.sandbox._inside import streams
from rlvr.sandbox._inside import workdirs as places

OPENAT2, NO_MAGIC_LINKS, NO_SYMLINKS, BENEATH = 437, 2, 4, 8
libc = ctypes.CDLL(None, use_errno=True)
NO_ERRNO = 199  # an exit status that is no errno
MAX_LINKS = 40  # links that the kernel follows in one path


def write_files(home: str, uid: int | None, files: Mapping[str, bytes]) -> tuple[int, str]:
    """Write files below `home`; return (0, ''), or an errno and the name of the file that failed.

    Missing parent folders are created. One process writes all files, as the user `uid`.
    """
    names, reached = list(files), os.memfd_create("reached", os.MFD_CLOEXEC)

    def work() -> int:
        os.umask(0o022)
        for place, name in enumerate(names):
            os.pwrite(reached, b"%d" % place, 0)
            if code := _write_file(home, name, files[name]):
                return code
        return 0

    try:
        code = _run_as_user(uid, work)
        place = os.pread(reached, 20, 0)
        return code, names[int(place)] if code and place else ""
    finally:
        os.close(reached)


def _write_file(home: str, path: str, data: bytes) -> int:
    target = _resolve_inside(home, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(target):
        return errno.EISDIR
    number = _open_resolved(home, target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return errno.EINVAL
        streams.write_all(number, data)
    finally:
        os.close(number)
    return 0


def try_read_file(home: str, uid: int | None, path: str, max_bytes: int) -> tuple[int, bytes]:
    """Read the first `max_bytes` bytes of a file below `home`; return (0, bytes) or (errno, b'')."""
    result = os.memfd_create("file", os.MFD_CLOEXEC)

    def work() -> int:
        try:
            number = _open_resolved(home, _resolve_inside(home, path), os.O_RDONLY)
        except FileNotFoundError:
            # a link that leads nowhere is no missing file: there is something of that name
            return errno.ENOLINK if os.path.lexists(os.path.join(home, path)) else errno.ENOENT
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            return errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        left = max_bytes
        while left and (data := os.read(number, min(left, 1 << 20))):
            left -= len(data)
            streams.write_all(result, data)
        return 0

    try:
        code = _run_as_user(uid, work)
        return code, b"" if code else os.pread(result, max_bytes, 0)
    finally:
        os.close(result)


def _run_as_user(uid: int | None, task: places.FileTask) -> int:
    def guarded() -> int:
        try:
            return task() or 0
        except OSError as error:
            return error.errno or NO_ERRNO

    code = places.run_as_user(uid, uid, guarded)
    return code if 0 <= code < NO_ERRNO else errno.EINTR


def _resolve_inside(home: str, path: str) -> str:
    """Resolve the links of a path; raise PermissionError if it leads out of `home`, and ELOOP for as many links as the kernel refuses.

    `os.path.realpath` follows any number of links: a session can lay some thousand in such a way that it takes half a minute.
    """
    root = os.path.realpath(home)
    target, rest, links = root, path.split("/")[::-1], 0
    if path.startswith("/"):
        target = "/"
    while rest:
        name = rest.pop()
        if name == "..":
            target = os.path.dirname(target)
        elif name not in ("", "."):
            target = os.path.join(target, name)
            try:
                link = os.readlink(target)
            except OSError:
                continue  # no link, or nothing that can be reached: opening it says what is wrong
            if (links := links + 1) > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = "/" if link.startswith("/") else os.path.dirname(target)
            rest += link.split("/")[::-1]
    if not target.startswith(root + "/"):
        raise PermissionError(errno.EACCES, "outside of the working folder")
    return target


def _open_resolved(home: str, target: str, flags: int, mode: int = 0) -> int:
    """Open a path below `home` that has no links any more. A process of the session that puts one there meanwhile gets an error.

    Kernels before 5.6 check only the last part of the path.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    root = os.path.realpath(home)
    how = (ctypes.c_uint64 * 3)(flags, mode, BENEATH | NO_SYMLINKS | NO_MAGIC_LINKS)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        number: int = libc.syscall(OPENAT2, folder, os.fsencode(os.path.relpath(target, root)), how, ctypes.sizeof(how))
    finally:
        os.close(folder)
    if number >= 0:
        return number
    if (code := ctypes.get_errno()) not in (errno.ENOSYS, errno.EPERM):
        raise OSError(code, os.strerror(code))
    return os.open(target, flags, mode)
