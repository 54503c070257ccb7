"""LightningDataModules for questions and repairs, data readers, and the embedded Atlas data set."""
