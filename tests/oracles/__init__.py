"""The judges: closed forms in float64, central differences, PyTorch where it is installed."""
