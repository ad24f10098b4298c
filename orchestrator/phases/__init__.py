"""One readable file per phase; phases never import each other."""
