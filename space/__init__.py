"""What can be asked and tried: problems, GPUs, kernel families, constraints, recipes, cost estimate."""
