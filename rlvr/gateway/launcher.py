"""Starts an agent in a box, and connects it to the gateway. Runs inside the box: standard library only, and no package of rlvr.

The box has no network but its own loopback device. Here a port of it is opened, and each connection is passed on to the socket of the
gateway, which is mounted in the box. All of this has no more rights than the agent, which can harm only its own episode with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

CHUNK_BYTES = 1 << 16


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection to its end."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def serve(port: int, gateway: str, is_ready: threading.Event) -> None:
    """Pass each connection to a port of the loopback device on to the gateway."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, questions = await asyncio.open_unix_connection(gateway)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(copy(reader, questions), copy(answers, writer))
        finally:
            questions.close()
            writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    is_ready.set()
    await server.serve_forever()


def main(start_file: str) -> int:
    """Write the files of the agent's home, run the agent, and return its exit code as a shell does."""
    with open(start_file, encoding="utf-8") as file:
        start = json.load(file)
    os.unlink(start_file)
    for path, text in start["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    is_ready = threading.Event()
    threading.Thread(target=lambda: asyncio.run(serve(start["port"], start["gateway"], is_ready)), daemon=True).start()
    if not is_ready.wait(30):
        raise SystemExit("the port for the agent could not be opened")
    variables = {**os.environ, "PATH": os.pathsep.join((*start["path"], os.environ["PATH"])), **start["variables"]}
    with tempfile.TemporaryFile(dir=start["home"]) as stdin:
        stdin.write(start["stdin"].encode("utf-8", "surrogatepass"))
        stdin.seek(0)
        try:
            code = subprocess.call(start["command"], stdin=stdin, stderr=subprocess.STDOUT, env=variables)
        except OSError as error:
            raise SystemExit(f"the agent did not start: {error}") from None
    return code


if __name__ == "__main__":
    ended = main(sys.argv[1])
    if ended < 0:  # end as the agent did
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended)  # the thread that serves the port has no end
