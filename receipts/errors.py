"""What can be wrong with a receipt; each names the file or field in its message."""


class ReceiptError(Exception):
    """Base of everything this package raises on purpose."""


class MalformedError(ReceiptError):
    """Bytes are not what their format demands."""


class CanonicalError(ReceiptError):
    """A value has no RFC 8785 form."""


class SignatureError(ReceiptError):
    """No signature of a known key holds."""


class KeyUnusableError(ReceiptError):
    """A key file cannot be used: unreadable, not ours, open to others, or no Ed25519 key."""
