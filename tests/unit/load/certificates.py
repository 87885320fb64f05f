"""Certificates of a test's own CA, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class Authority:
    """A CA in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        openssl("req", "-x509", *KEY, "-keyout", folder / "ca.key", "-out", self.ca, "-days", "9", "-subj", "/CN=test")

    def issue(self, name: str, stem: str = "", days: str = "9") -> tuple[str, str]:
        """Make a certificate for a DNS name; return the paths of certificate and key."""
        certificate, key = (self.folder / f"{stem or name}.{end}" for end in ("pem", "key"))
        request, names = self.folder / "request", self.folder / "names"
        names.write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")
        openssl("req", "-new", *KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signed_by, "-days", days, "-extfile", names, "-out", certificate)
        key.chmod(0o640)
        return str(certificate), str(key)
