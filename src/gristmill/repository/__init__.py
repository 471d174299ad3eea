"""Deployments: what is loaded and served."""
