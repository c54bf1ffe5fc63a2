"""An agent of the package langgraph with a tool `bash`; the task is its argument."""

import subprocess
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def bash(command: str) -> str:
    """Run a command in the working folder, and return its output."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


agent = create_agent(ChatOpenAI(model="policy"), [bash])
print(agent.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]})["messages"][-1].content)
