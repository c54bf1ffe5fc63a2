"""Redirect the rendezvous files and sockets of vLLM's processes to a folder that is removed with the engine."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INIT_METHOD_NAME = "get_file_store_init_method"
SOCKET_FOLDER_VARIABLE, MAX_FOLDER_CHARS = "VLLM_RPC_BASE_PATH", 70
"""Environment variable of vLLM's socket folder; a socket path, with a name of 36 characters, has at most 107."""


@contextmanager
def redirect_vllm_rendezvous_files(folder: Path) -> Iterator[None]:
    """Within this context, let vLLM put its rendezvous files and sockets into a folder, instead of leaving them in /tmp."""
    makers = [importlib.import_module(f"vllm.v1.executor.{kind}proc_executor") for kind in ("uni", "multi")]
    before = [
        (maker, vars(maker)[INIT_METHOD_NAME]) for maker in makers if INIT_METHOD_NAME in vars(maker)
    ]  # older versions do not have it
    getattr(importlib.import_module("vllm.envs"), "disable_envs_cache", int)()  # the cache would return the folder of an earlier engine
    sockets = os.environ.get(SOCKET_FOLDER_VARIABLE)
    if len(str(folder)) <= MAX_FOLDER_CHARS:
        os.environ[SOCKET_FOLDER_VARIABLE] = str(folder)
    try:
        for maker, _ in before:
            setattr(maker, INIT_METHOD_NAME, lambda: f"file://{folder}/{folder.name}-{uuid.uuid4().hex}")
        yield
    finally:
        for maker, method in before:
            setattr(maker, INIT_METHOD_NAME, method)
        os.environ.pop(SOCKET_FOLDER_VARIABLE, None)
        if sockets is not None:
            os.environ[SOCKET_FOLDER_VARIABLE] = sockets
