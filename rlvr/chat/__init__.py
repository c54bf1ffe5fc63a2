"""Chat templates, tool formats and control tokens: how a conversation becomes token ids."""
