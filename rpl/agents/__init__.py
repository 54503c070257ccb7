"""Everything that answers a question: the policy, and the fixed programs it has to beat."""
