"""What more than one phase needs: trees, capture, apply, supervision, collection."""
