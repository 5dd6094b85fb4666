"""Adapters to the store interfaces of other projects. Each module imports without its project."""
