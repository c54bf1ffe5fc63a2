"""An agent of the package openai-agents with a tool `bash`; the task is its argument."""

import subprocess
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled


@function_tool
def bash(command: str) -> str:
    """Run a command in the working folder, and return its output."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


set_tracing_disabled(True)
print(Runner.run_sync(Agent("coder", instructions="Solve the task with bash.", tools=[bash], model="policy"), sys.argv[1]).final_output)
