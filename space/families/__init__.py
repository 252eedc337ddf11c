"""The kernel families gemmtune ships."""
