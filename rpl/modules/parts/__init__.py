"""What a module is put together from: the model, the rollout engine, the evaluator, and what they share."""
