"""Networks that are computed beside the policy in a pass of the learner: a teacher, and a critic of its own."""
