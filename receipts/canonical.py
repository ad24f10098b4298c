"""The canonical bytes of a value (RFC 8785, JSON Canonicalization Scheme) and their hash."""

import hashlib
from typing import Any

import rfc8785

from receipts.errors import CanonicalError


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form of plain JSON data.

    Raises:
        CanonicalError: there is none: an integer beyond 2^53 - 1 (write it as a string), NaN, an
            infinity, a key that is no string, or a type that JSON lacks.
    """
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError as error:
        raise CanonicalError(f"{error}: write integers beyond 2^53 as strings") from error
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise CanonicalError(str(error)) from error


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of ``data`` in lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
