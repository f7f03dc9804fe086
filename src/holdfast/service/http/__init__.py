"""The HTTP kit that node and broker serve with: routes, requests, limits, errors, streaming,
OpenAPI.
"""
