"""Rollouts: conversations from the prompt to the verdict, verification in threads, and replay."""
