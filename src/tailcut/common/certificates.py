"""What to do about a certificate that a client does not accept."""

from __future__ import annotations

_WAYS_OUT = {
    9: "the server's certificate is not valid yet: check both clocks",
    10: "the server's certificate has expired: renew it",
    62: "use a name in the server's certificate, or issue one for this name",
    64: "use an address in the server's certificate, or issue one for this address",
}
"""By OpenSSL's number. Source: X509_verify_cert_error_string(3)."""


def certificate_hint(verify_code: int, trust: str) -> str:
    """Return the way out.

    Args:
        verify_code: why it was refused, as ``ssl.SSLCertVerificationError.verify_code`` says.
        trust: how the caller makes an authority of its own known.
    """
    return _WAYS_OUT.get(verify_code, f"if it is signed by your own authority: {trust}")
