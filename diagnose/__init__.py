"""Why something is slow or does not work: the check of a machine, and the diagnosis of a kernel."""
