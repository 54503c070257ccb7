"""The embedded default data set: a small atlas whose facts come from an installed data package."""
