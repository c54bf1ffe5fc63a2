"""Conversations from the first prompt to the verdict: rollouts, judging in threads, replay."""
