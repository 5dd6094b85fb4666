"""What other projects expect of a store, made of ours. Each module imports without the project it is for."""
