"""The embedded default data set: a small atlas whose facts come from an installed data package."""

from rpl.atlas.build import ATLAS_NAMES, Atlas, AtlasName, build, materialise

__all__ = ["ATLAS_NAMES", "Atlas", "AtlasName", "build", "materialise"]
