"""Mutation operators, by what they change. Each module registers its own with `rpl.mutation.edits.operator`."""
