"""A certificate made by this machine, so that phones give pages the camera. Browsers ask once whether to accept it."""

import ipaddress
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.output_file import replacing
from stream_recon.app.result.files import output_errors
from stream_recon.app.viewer.guard import outward_address
from stream_recon.configs.errors import missing_library

DAYS = 800
"""Validity; phones refuse certificates of more than 825 days."""
RENEW_DAYS = 30
CERTIFICATE = "certificate.pem"


def own_certificate(folder: Path, host: str) -> Path:
    """File of a certificate for this machine's names and addresses and of its key; made once, so that phones accept it
    once, and again where it ends soon or lacks one of the addresses.

    Raises OutputError; ResourceError without the library.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise missing_library("--tls", "cryptography", otherwise="use --cert and --key") from error
    path = folder / CERTIFICATE
    names = _names(host)
    now = datetime.now(UTC)
    with suppress(OSError, ValueError, x509.ExtensionNotFound):  # SSLError of another key is an OSError
        present = x509.load_pem_x509_certificate(read_file(path))
        alternative = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        covered = {str(entry.value) for entry in alternative}
        if names <= covered and present.not_valid_after_utc > now + timedelta(days=RENEW_DAYS):
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
            return path
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"stream-recon on {socket.gethostname()}"[:64])])
    alternatives: list[x509.GeneralName] = []
    for name in sorted(names):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with output_errors(path), replacing(path, 0o600, durable=True) as file:
        file.write(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def _names(host: str) -> set[str]:
    """Names and addresses by which browsers reach this machine."""
    names = {"localhost", "127.0.0.1", "::1", outward_address(host)}
    own = socket.gethostname()
    if own.isascii():
        names |= {own, f"{own}.local"}
    return names | ({host} - {"", "0.0.0.0", "::"})
