"""What everything stands on: records, errors, files, seeds, answers and evidence. Imports nothing of ours."""
