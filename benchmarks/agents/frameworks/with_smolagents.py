"""An agent of the package smolagents with a tool `bash`; the task is its argument."""

import os
import subprocess
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def bash(command: str) -> str:
    """Run a command in the working folder, and return its output.

    Args:
        command: the command.
    """
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


model = OpenAIModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
print(ToolCallingAgent([bash], model, max_steps=8).run(sys.argv[1]))
