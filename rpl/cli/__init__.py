"""The rpl command: LightningCLI for fit, validate, test and predict, and one module a command for the rest."""
