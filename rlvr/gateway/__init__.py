"""The gateway: an HTTP server on this machine whose chat completions are the turns of a rollout, for agents that run unmodified."""
