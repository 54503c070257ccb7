"""The program language: grammar, canonical form, edit distance, mutation operators. Pure: nothing here executes."""
