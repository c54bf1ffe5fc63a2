"""The verbs of the command line, one module each; imported only when their verb is typed."""
