"""The samplers: the plugins that sample answers to prompts."""
