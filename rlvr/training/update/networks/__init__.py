"""Networks that are computed next to the policy: a teacher, and a separate critic."""
