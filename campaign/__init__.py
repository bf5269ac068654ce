"""A long random test of wtfarray against an oracle of its own: ``python -m campaign --help``."""
