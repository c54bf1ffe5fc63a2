"""The kits that plugin authors run: `rlvr check` for environments, verifiers and sandboxes."""
