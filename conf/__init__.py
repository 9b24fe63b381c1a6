"""Hydra configuration groups, found as `pkg://dalton.conf`."""
