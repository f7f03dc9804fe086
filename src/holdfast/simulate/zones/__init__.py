"""Zones with topologies and entitlements."""
