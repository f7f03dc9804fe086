"""Asking a broker over HTTP."""
