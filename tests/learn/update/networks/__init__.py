"""Networks beside the policy."""
