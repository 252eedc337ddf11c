"""The same kernel source on the CPU, with adversarial scheduling; its times are estimates."""
