"""Bad input of every kind, made from seeds: to files and expressions, and to the doors."""
