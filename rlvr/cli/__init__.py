"""The subcommands of `rlvr`, one module each, imported only when the subcommand runs."""
