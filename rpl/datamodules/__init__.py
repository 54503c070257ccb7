"""LightningDataModules for questions and repairs, data readers and deterministic loaders."""
