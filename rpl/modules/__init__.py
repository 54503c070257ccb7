"""LightningModules (GRPO, SFT) and the pure maths beside them."""
