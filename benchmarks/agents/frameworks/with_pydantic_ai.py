"""An agent of the package pydantic-ai with a tool `bash`; the task is its argument."""

import subprocess
import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:policy", instructions="Solve the task with bash.")


@agent.tool_plain
def bash(command: str) -> str:
    """Run a command in the working folder, and return its output."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


print(agent.run_sync(sys.argv[1]).output)
