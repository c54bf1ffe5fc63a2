"""The token-level MDP: its rules, the Gymnasium environments that follow them, tokenizers and transcripts."""
