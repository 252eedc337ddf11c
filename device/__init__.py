"""Where a kernel runs: launching, verifying, measuring, baselines, worker processes."""
