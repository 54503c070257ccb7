"""The commands beside LightningCLI: one module each, with a `run(args)` that parses and executes."""
