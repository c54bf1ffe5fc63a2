"""The samplers: who answers the prompts."""
