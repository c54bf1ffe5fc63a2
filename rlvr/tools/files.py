"""Read, write and edit text files in the sandbox session of the conversation."""

from __future__ import annotations

from rlvr.contracts.tool import Tool, tool
from rlvr.errors import ToolError

MAX_FILE_BYTES = 1_000_000
"""Maximum size of a file that is read or written."""


class Files(Tool):
    """Three tools for the files of the sandbox: read lines, write a file, replace a text in a file.

    >>> [spec.name for spec in Files().specs()]
    ['read_file', 'write_file', 'edit_file']
    """

    needs_sandbox = True

    @tool
    def read_file(self, path: str, first: int = 1, lines: int = 400) -> str:
        """Read a text file, or a part of it; each line comes with its number.

        Args:
            path: the file.
            first: the first line, counted from 1.
            lines: how many lines at most.
        """
        if first < 1 or lines < 1:
            raise ToolError("first and lines must be at least 1")
        every = self._read_text(path).splitlines()
        if not every:
            return "[the file is empty]"
        if first > len(every):
            raise ToolError(f"{path} has {len(every)} lines; line {first} is past its end")
        part = every[first - 1 : first - 1 + lines]
        rest = len(every) - (first - 1 + len(part))
        numbered = [f"{number}\t{line}" for number, line in enumerate(part, start=first)]
        return "\n".join([*numbered, f"[{rest} more lines]"] if rest > 0 else numbered)

    @tool
    def write_file(self, path: str, text: str) -> str:
        """Write a text file. Existing content is replaced.

        Args:
            path: the file; its parent folders are created.
            text: the whole content of the file.
        """
        self._write_text(path, text)
        return f"Wrote {len(text)} characters to {path}."

    @tool
    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file by another one. The old text must occur exactly once.

        Args:
            path: the file.
            old: the text exactly as it is in the file, with its spaces and line breaks.
            new: the new text.
        """
        if not old:
            raise ToolError("old is empty; give the text to be replaced, or use write_file")
        text = self._read_text(path)
        times = text.count(old)
        if times != 1:
            advice = "read the file and copy the text exactly" if times == 0 else "give more of the text around it"
            raise ToolError(f"the old text occurs {times} times in {path}, it must occur once; {advice}")
        self._write_text(path, text.replace(old, new))
        line = text[: text.index(old)].count("\n") + 1
        return f"Replaced it in {path}, line {line}."

    def _read_text(self, path: str) -> str:
        try:
            data = self.sandbox_session.read_file(_check_path(path), MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ToolError(f"{path} cannot be read: {error.strerror or error}") from error
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is not UTF-8 text") from error

    def _write_text(self, path: str, text: str) -> None:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ToolError("the text has characters that cannot be written in UTF-8") from error
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"the file would be larger than {MAX_FILE_BYTES} bytes")
        try:
            self.sandbox_session.write_file(_check_path(path), data)
        except OSError as error:
            raise ToolError(f"{path} cannot be written: {error.strerror or error}") from error


def _check_path(path: str) -> str:
    if not path or "\0" in path or not path.isprintable():
        raise ToolError("the path is empty or has characters that are not allowed in a path")
    return path


make = Files
