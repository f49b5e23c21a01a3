"""Spellings of licences in data sets that no rule and no identifier covers, and licences without
an SPDX identifier.

Keys of `SPELLINGS` are in the form `spdx.fold_name` gives: lower case, single blanks, without
"the", "license", "version" and the like.
"""

PUBLIC_DOMAIN = "LicenseRef-scancode-public-domain"
US_GOVERNMENT = "LicenseRef-scancode-us-govt-public-domain"
RESERVED = "LicenseRef-All-Rights-Reserved"
NO_KNOWN_COPYRIGHT = "LicenseRef-No-Known-Copyright"
BSD = "LicenseRef-BSD"

UNVERSIONED = {
    kind: f"LicenseRef-CC-{kind.upper()}"
    for kind in ("by", "by-sa", "by-nc", "by-nd", "by-nc-sa", "by-nc-nd")
}
"""Creative Commons licences named without their version."""

FAMILIES = {
    RESERVED: "reserved",
    NO_KNOWN_COPYRIGHT: "public-domain",
    BSD: "permissive",
    "LicenseRef-CC-BY": "permissive",
    "LicenseRef-CC-BY-SA": "share-alike",
    "LicenseRef-CC-BY-NC": "restricted",
    "LicenseRef-CC-BY-ND": "restricted",
    "LicenseRef-CC-BY-NC-SA": "restricted",
    "LicenseRef-CC-BY-NC-ND": "restricted",
    "LicenseRef-OpenRAIL": "restricted",
    "LicenseRef-Research-Only": "restricted",
}
"""The family of licences that the licence index does not know."""

_NAMES = {
    "Apache-2.0": (
        "apache | apache 2 | apache2 | apache2.0 | apache software | apache software 2.0 | asl 2.0"
    ),
    "MIT": "expat | mit expat | mit x11 | x11 mit | mit style",
    "ISC": "isc",
    "Zlib": "zlib libpng",
    "BSL-1.0": "boost | boost software 1.0",
    "MPL-2.0": "mpl | mpl 2 | mozilla public 2.0 | mozilla public",
    "MPL-1.1": "mozilla public 1.1",
    "EPL-2.0": "eclipse public 2.0",
    "EPL-1.0": "eclipse public 1.0",
    "PSF-2.0": "psf | python software foundation",
    "Python-2.0": "python",
    "Artistic-1.0": "artistic",
    "Artistic-1.0-Perl OR GPL-1.0-or-later": "perl | same as perl",
    "PostgreSQL": "postgresql",
    "CC-PDM-1.0": "public domain mark | pdm | pdm 1.0",
    PUBLIC_DOMAIN: "pd | publicdomain",
    "PDDL-1.0": "pddl | odc pddl | open data commons public domain dedication and",
    "ODC-By-1.0": (
        "odc by | odc by 1.0 | open data commons attribution | open data commons attribution 1.0"
    ),
    "ODbL-1.0": "odbl | odc odbl | open database | open data commons open database",
    "CDLA-Permissive-2.0": "cdla permissive",
    "CDLA-Sharing-1.0": "cdla sharing",
    "OGL-UK-3.0": "open government | open government 3.0 | ogl | ogl 3.0",
    "OGL-UK-2.0": "open government 2.0",
    "etalab-2.0": "etalab",
    "OFL-1.1": "open font | ofl",
    "LPPL-1.3c": "lppl",
    "EUPL-1.2": "eupl",
    "WTFPL": "wtfpl",
    "CECILL-2.1": "cecill",
    "LicenseRef-scancode-gemma-tou-2024-04-01": "gemma",
    "LicenseRef-scancode-llama-2-license-2023": "llama2",
    "LicenseRef-scancode-llama-3.1-license-2024": "llama3.1",
    "LicenseRef-scancode-llama-3.2-license-2024": "llama3.2",
    "LicenseRef-scancode-llama-3.3-license-2024": "llama3.3",
    "LicenseRef-scancode-llama-4-license-2025": "llama4",
    "LicenseRef-OpenRAIL": "openrail | openrail++ | creativeml openrail m",
    "LicenseRef-scancode-bigscience-open-rail-m": "bigscience openrail m",
    "LicenseRef-scancode-bigscience-rail-1.0": "bigscience bloom rail 1.0",
    "LicenseRef-scancode-bigcode-open-rail-m-v1": "bigcode openrail m",
    "C-UDA-1.0": "c uda",
    "LicenseRef-Research-Only": (
        "fair noncommercial research | intel research | h research | research only | non "
        "commercial | non commercial research | non commercial research only"
    ),
    RESERVED: (
        "all rights reserved | copyright | copyrighted | in copyright | proprietary | commercial"
    ),
    NO_KNOWN_COPYRIGHT: (
        "no known copyright | no known copyright restriction | no known copyright "
        "restrictions | no known restriction | no known restrictions"
    ),
    "Linux-man-pages-copyleft": "linux man pages copyleft",
}
SPELLINGS = {name: spdx for spdx, names in _NAMES.items() for name in names.split(" | ")}
